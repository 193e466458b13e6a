// SPDX-License-Identifier: Apache-2.0
// Part of every test program of the sanitizer builds: what outside libraries leave behind at exit isn't ours to mend.
extern "C" {

const char* __lsan_default_suppressions() {  // NOLINT: the sanitizer's name
  return "leak:libmpi.so\n"
         "leak:libopen-pal.so\n"
         "leak:libopen-rte.so\n"
         "leak:libpmix.so\n"
         "leak:mca_\n"
         "leak:libucs.so\n"
         "leak:libucp.so\n"
         "leak:libuct.so\n"
         "leak:libhwloc.so\n"
         "leak:libevent\n"
         "leak:libhdf5\n";
}

const char* __asan_default_options() {  // NOLINT: as above
  return "detect_stack_use_after_return=1";
}

const char* __ubsan_default_options() {  // NOLINT: as above
  return "print_stacktrace=1";
}
}
