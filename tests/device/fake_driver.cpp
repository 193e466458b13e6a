// SPDX-License-Identifier: Apache-2.0
// A driver library that answers what the environment tells it, for the loader's tests on machines without a GPU.
#include <cstdlib>

namespace {

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return number("FAKE_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  *version = number("FAKE_VERSION", 13000);
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_COUNT", 2);
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  // The first GPU is of the architecture told, the second of 9.0.
  const int capability = device == 0 ? number("FAKE_CAPABILITY", 90) : 90;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "a made-up error";
  return 0;
}
}
