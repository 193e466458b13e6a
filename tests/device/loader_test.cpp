// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace deepspeed::device {
namespace {

using testing::HasSubstr;

TEST(Architectures, BinaryCodeRunsWithinItsMajorVersion) {
  EXPECT_TRUE(has_code_for("80-real", 8, 0));
  EXPECT_TRUE(has_code_for("80-real", 8, 9));
  EXPECT_FALSE(has_code_for("86-real", 8, 0));
  EXPECT_FALSE(has_code_for("80-real", 9, 0));
  EXPECT_TRUE(has_code_for("80-real,90-real", 9, 0));
  EXPECT_FALSE(has_code_for("", 9, 0));
}

TEST(Architectures, PtxRunsOnEverythingNewer) {
  EXPECT_TRUE(has_code_for("80-virtual", 12, 0));
  EXPECT_TRUE(has_code_for("80", 9, 0));
  EXPECT_FALSE(has_code_for("90-virtual", 8, 9));
  EXPECT_TRUE(has_code_for("80-real,120-real,120-virtual", 12, 1));
  EXPECT_FALSE(has_code_for("80-real,120-real,120-virtual", 7, 5));
}

TEST(Architectures, SpecificCodeStaysWhereItIs) {
  EXPECT_TRUE(has_code_for("90a-real", 9, 0));
  EXPECT_FALSE(has_code_for("90a", 10, 0));
  EXPECT_FALSE(has_code_for("100a", 10, 3));
  EXPECT_TRUE(has_code_for("100f-real", 10, 3));
}

// Each test is asked with a driver that answers what the environment says.
class Loader : public testing::Test {
 protected:
  void SetUp() override {
    places_.driver = std::string(DS_BINARY_DIR) + "/tests/libfake_driver.so";
    if (!std::filesystem::exists(places_.driver)) GTEST_SKIP() << "needs the build tree's " << places_.driver;
    places_.plugin = std::string(DS_BINARY_DIR) + "/tests/libbroken_plugin.so";
    places_.architectures = "80-real,90-real";
    places_.cuda_version = 13000;
  }
  void TearDown() override {
    for (const char* name : {"FAKE_INIT", "FAKE_VERSION", "FAKE_COUNT", "FAKE_CAPABILITY"}) unsetenv(name);
  }
  void expect(State state, const std::string& reason) {
    const Opened opened = open_at(places_);
    EXPECT_STREQ(name_of(opened.state), name_of(state));
    EXPECT_THAT(opened.reason, HasSubstr(reason));
    EXPECT_EQ(opened.reason.find('\n'), std::string::npos);
    EXPECT_EQ(opened.table, nullptr);
  }

  Places places_;
};

TEST_F(Loader, TurnedOff) {
  places_.accelerator = "cpu";
  expect(State::turned_off, "DS_ACCELERATOR=cpu");
}

TEST_F(Loader, NoDriver) {
  places_.driver = "libno_such_driver.so.1";
  expect(State::no_driver, "libno_such_driver.so.1");
}

TEST_F(Loader, ALibraryThatIsNoDriver) {
  places_.driver = places_.plugin;
  expect(State::driver_failed, "isn't a CUDA driver");
}

TEST_F(Loader, DriverThatDoesNotStart) {
  setenv("FAKE_INIT", "802", 1);
  expect(State::driver_failed, "error 802, a made-up error");
}

TEST_F(Loader, NoDevice) {
  setenv("FAKE_INIT", "100", 1);
  expect(State::no_device, "sees no GPU");
  setenv("FAKE_INIT", "0", 1);
  setenv("FAKE_COUNT", "0", 1);
  setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  expect(State::no_device, "CUDA_VISIBLE_DEVICES=-1");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(Loader, BuiltWithoutPlugin) {
  places_.architectures.clear();
  expect(State::no_plugin, "this build has no CUDA plug-in");
}

TEST_F(Loader, PluginFileMissing) {
  places_.plugin = "/nowhere/libdeepspeed_cuda.so";
  expect(State::no_plugin, "/nowhere/libdeepspeed_cuda.so is missing");
}

TEST_F(Loader, DriverTooOld) {
  setenv("FAKE_VERSION", "12080", 1);
  expect(State::driver_too_old, "made for CUDA 12.8, the CUDA plug-in needs 13.0");
  places_.cuda_version = 13020;  // within a major version an older driver does
  setenv("FAKE_VERSION", "13000", 1);
  expect(State::no_plugin, "another version");
}

TEST_F(Loader, NoCodeForTheGpu) {
  setenv("FAKE_CAPABILITY", "75", 1);
  expect(State::no_code, "GPU 0 has compute capability 7.5");
}

TEST_F(Loader, PluginOfAnotherVersion) {
  expect(State::no_plugin, "another version");
}

TEST_F(Loader, PluginThatCannotBeOpened) {
  places_.plugin = testing::TempDir() + "/libnot_a_library.so";
  std::ofstream(places_.plugin) << "text";
  expect(State::missing_library, "can't be opened");
}

// The real plug-in needs no GPU to be opened: every symbol it uses is there, and every function is filled in.
TEST_F(Loader, TheRealPluginOpens) {
  const Places own = own_places();
  EXPECT_EQ(std::filesystem::path(own.plugin).filename(), "libdeepspeed_cuda.so");
  if (own.architectures.empty()) GTEST_SKIP() << "this build has no CUDA plug-in";
  places_.plugin = own.plugin;
  const Opened opened = open_at(places_);
  ASSERT_EQ(opened.state, State::loaded) << opened.reason;
  EXPECT_EQ(opened.devices, 2);
  ASSERT_NE(opened.table, nullptr);
  EXPECT_EQ(opened.table->cuda_version / 1000, own.cuda_version / 1000);
  EXPECT_GT(opened.table->nccl_version, 20000);
  constexpr std::size_t first = offsetof(Table, device_count);
  static_assert((sizeof(Table) - first) % sizeof(void*) == 0);
  std::vector<void*> functions((sizeof(Table) - first) / sizeof(void*));
  std::memcpy(functions.data(), reinterpret_cast<const char*>(opened.table) + first, sizeof(Table) - first);
  for (std::size_t i = 0; i < functions.size(); ++i) EXPECT_NE(functions[i], nullptr) << "function " << i;

  // Its exceptions are ours.
  const AdamPiece piece;
  AdamStep step;
  step.gradient_type = Dtype::i64;
  EXPECT_THROW(opened.table->adam(&piece, 1, step, nullptr), base::DeviceError);
  EXPECT_THROW(opened.table->cast({nullptr, 1, Dtype::f32}, {nullptr, 2, Dtype::f32}, 1.0F, nullptr),
               base::DeviceError);
}

// `open` decides once in the life of a process, so each case gets its own.
int answer_of_open(const char* accelerator) {
  setenv("DS_ACCELERATOR", accelerator, 1);
  try {
    open();
    table();
  } catch (const base::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

TEST(Open, CpuTurnsItOff) {
  EXPECT_EXIT(std::exit(answer_of_open("cpu")), testing::ExitedWithCode(9),
              "no GPU can be used: DS_ACCELERATOR=cpu turns the GPU off");
}

TEST(Open, UnknownAcceleratorIsRefused) {
  EXPECT_EXIT(std::exit(answer_of_open("xpu")), testing::ExitedWithCode(3), "DS_ACCELERATOR=xpu: not supported");
}

TEST(Open, DemandedGpuIsAnError) {
  const bool here = open_at(own_places()).state == State::loaded;
  if (here) GTEST_SKIP() << "there is a GPU";
  EXPECT_EXIT(std::exit(answer_of_open("cuda")), testing::ExitedWithCode(9), "DS_ACCELERATOR=cuda: ");
}

}  // namespace
}  // namespace deepspeed::device
