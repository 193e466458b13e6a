# SPDX-License-Identifier: Apache-2.0
# First version: written from the build's needs, not yet built by Spack itself.
try:  # Spack 1.0 and newer keep the build systems beside the packages
    from spack_repo.builtin.build_systems.cmake import CMakePackage
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass

from spack.package import *


class DeepspeedMpi(CMakePackage, CudaPackage):
    """Large-model training as one MPI-native C++20 program that takes DeepSpeed configurations."""

    license("Apache-2.0")

    # A checkout: `spack dev-build deepspeed-mpi@main` in it builds what is there.
    version("main")

    variant("cuda", default=False, description="Build the CUDA plug-in")
    variant("aio", default=True, description="Asynchronous file input and output with libaio")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPU: cuda_arch=90")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("mpi")
    depends_on("hdf5")
    depends_on("kokkos@3.4: +openmp +shared")
    depends_on("nlohmann-json@3.11:")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10: +fmt_external")
    depends_on("cli11@2.3:")
    depends_on("xxhash")
    depends_on("hwloc@2:")
    depends_on("libaio", when="+aio")
    depends_on("googletest +gmock", type=("build", "test"))
    depends_on("benchmark", type=("build", "test"))

    # Its C++ part alone is used; no Python runs.
    depends_on("py-torch@2.11 ~cuda", when="~cuda")
    depends_on("py-torch@2.11 +cuda", when="+cuda")
    depends_on("nccl", when="+cuda")

    generator("ninja")

    def cmake_args(self):
        torch = join_path(self.spec["py-torch"].prefix, self.spec["python"].package.platlib, "torch")
        args = [
            self.define("Torch_DIR", join_path(torch, "share", "cmake", "Torch")),
            self.define("Kokkos_ROOT", self.spec["kokkos"].prefix),
            self.define("DS_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define_from_variant("DS_AIO", "aio"),
            self.define("DS_TESTS", self.run_tests),
            self.define("DS_BENCHMARKS", self.run_tests),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("DS_CUDA_ARCHITECTURES", ";".join(self.spec.variants["cuda_arch"].value)))
        return args

    def check(self):
        with working_dir(self.build_directory):
            ctest("--output-on-failure", "-L", "unit")
