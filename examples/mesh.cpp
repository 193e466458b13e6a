// SPDX-License-Identifier: Apache-2.0
// Prints which ranks belong together when a job is cut along pipeline, tensor and data axes. No MPI is needed to ask.
//   mesh RANKS [PIPE [TENSOR]]
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "layout/mesh.h"

namespace {

using deepspeed::layout::Mesh;

void print(const char* what, const std::vector<std::vector<int>>& groups) {
  std::printf("%-8s", what);
  for (const auto& group : groups) {
    std::printf(" [");
    for (std::size_t i = 0; i < group.size(); ++i) std::printf(i == 0 ? "%d" : " %d", group[i]);
    std::printf("]");
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: mesh RANKS [PIPE [TENSOR]]\n");
    return 2;
  }
  try {
    deepspeed::layout::Degrees degrees;
    if (argc > 2) degrees.pipe = std::atoi(argv[2]);
    if (argc > 3) degrees.tensor = std::atoi(argv[3]);
    const Mesh mesh(std::atoi(argv[1]), degrees);
    std::printf("%s\n", mesh.describe().c_str());
    print("pipe", mesh.groups(deepspeed::layout::Axis::pipe));
    print("data", mesh.groups(deepspeed::layout::data_axes));
    print("tensor", mesh.groups(deepspeed::layout::Axis::tensor));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mesh: %s\n", error.what());
    return 1;
  }
}
