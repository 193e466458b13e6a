// SPDX-License-Identifier: Apache-2.0
#include "comm/process.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "comm/process_impl.h"
#include "comm/self_group.h"
#include "comm/work_state.h"

namespace deepspeed::comm {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::string library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw base::CommError(fmt::format("{}: {}", what, text.data()));
}

std::chrono::nanoseconds timeout_from_environment() {
  const char* given = std::getenv("DS_COMM_TIMEOUT");
  if (given == nullptr || *given == '\0') return std::chrono::seconds(1800);
  char* end = nullptr;
  const double seconds = std::strtod(given, &end);
  if (*end != '\0' || !(seconds >= 0) || seconds > 1e9) {
    throw base::ConfigError(fmt::format("DS_COMM_TIMEOUT: '{}' is not a number of seconds (0: no limit)", given));
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

bool set_in_environment(const char* name) {
  const char* given = std::getenv(name);
  return given != nullptr && std::string(given) != "0";
}

/// Whether each collective is compared between the ranks first: always in debug builds.
bool check_from_environment() {
#ifdef NDEBUG
  return set_in_environment("DS_COMM_CHECK");
#else
  return std::getenv("DS_COMM_CHECK") == nullptr || set_in_environment("DS_COMM_CHECK");
#endif
}

/// Without a launcher, Open MPI starts a helper process that only MPI_Comm_spawn would need; it costs 0.2 s.
void start_alone_if_no_launcher() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    for (const std::string_view launcher : {"OMPI_COMM_", "OMPI_MCA_ess", "PMIX_", "PMI_", "PALS_", "SLURM_STEP_"}) {
      if (variable.starts_with(launcher)) return;
    }
  }
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
}

/// A launcher of another MPI starts ranks that each believe to be alone, and would train N times on the same files.
void refuse_foreign_launcher() {
  struct Launcher {
    const char* variable;
    const char* advice;
  };
  static constexpr std::array<Launcher, 4> launchers{
      {{"OMPI_COMM_WORLD_SIZE", "use the mpirun of the MPI library named here"},
       {"PMI_SIZE", "use the mpiexec of the MPI library named here"},
       {"PALS_SIZE", "use the launcher of the MPI library named here"},
       {"SLURM_STEP_NUM_TASKS", "use `srun --mpi=pmix` (`srun --mpi=list` shows what there is)"}}};
  for (const auto& [variable, advice] : launchers) {
    const char* value = std::getenv(variable);
    if (value == nullptr || std::atoi(value) <= 1) continue;
    throw base::CommError(
        fmt::format("this is one of {} processes ({}={}), but {} sees only this one: the launcher and the MPI "
                    "library don't know each other; {}",
                    value, variable, value, library(), advice));
  }
}

}  // namespace

Process::Process(int* argc, char*** argv) : impl_(std::make_unique<Impl>()) {
  Impl& p = *impl_;
  const std::chrono::nanoseconds timeout = timeout_from_environment();
  p.host = host_name();
  int initialized = 0;
  MPI_Initialized(&initialized);
  int level = MPI_THREAD_SINGLE;
  if (initialized == 0) {
    start_alone_if_no_launcher();
    check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level), "MPI can't be started");
    p.started_mpi = true;
  } else {
    MPI_Query_thread(&level);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw base::CommError(fmt::format(
        "{} gives no thread support: MPI_THREAD_SERIALIZED is needed, since one thread of each rank does all "
        "communication",
        library()));
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &p.size);
  log::set_rank(p.rank, p.size);
  if (p.size == 1) {
    if (p.started_mpi) refuse_foreign_launcher();
    p.world = make_self_group("world");
  } else {
    MPI_Comm local = MPI_COMM_NULL;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, p.rank, MPI_INFO_NULL, &local),
          "MPI_Comm_split_type");
    MPI_Comm_rank(local, &p.local_rank);
    MPI_Comm_size(local, &p.local_size);
    // A host is named by its first rank.
    std::vector<int> nodes(static_cast<std::size_t>(p.size));
    int node = p.rank;
    check(MPI_Bcast(&node, 1, MPI_INT, 0, local), "MPI_Bcast");
    if (set_in_environment("DS_COMM_SEPARATE_HOSTS")) node = p.rank;
    check(MPI_Allgather(&node, 1, MPI_INT, nodes.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
    MPI_Comm_free(&local);
    p.session = std::make_shared<MpiSession>(timeout, check_from_environment(), p.host, std::move(nodes));
    // Own copies: messages can't meet those of a caller's own MPI code.
    const auto copy = [&p](const char* name) -> const Communicator& {
      MPI_Comm handle = MPI_COMM_NULL;
      check(MPI_Comm_dup(MPI_COMM_WORLD, &handle), "MPI_Comm_dup");
      return p.session->adopt(handle, name);
    };
    p.control = &copy("control");
    p.world = make_mpi_group(p.session, copy("world"));
  }
  p.cores = find_cores();
  p.threads = threads_for(p.cores, p.local_size);
  const std::string advice = binding_advice(p.cores, p.local_size);
  if (!advice.empty()) log::write_once(log::Level::warning, "binding", advice);
}

Process::~Process() {
  const bool sound = impl_->session == nullptr || impl_->session->close();
  int finalized = 0;
  MPI_Finalized(&finalized);
  // With calls given up, MPI_Finalize would wait for them for ever.
  if (impl_->started_mpi && finalized == 0 && sound) MPI_Finalize();
}

int Process::rank() const {
  return impl_->rank;
}
int Process::size() const {
  return impl_->size;
}
int Process::local_rank() const {
  return impl_->local_rank;
}
int Process::local_size() const {
  return impl_->local_size;
}
const std::string& Process::host() const {
  return impl_->host;
}
int Process::threads_per_rank() const {
  return impl_->threads;
}
std::shared_ptr<Group> Process::world() const {
  return impl_->world;
}

Work Process::run(std::function<void()> job) {
  if (impl_->session != nullptr) return impl_->session->thread().run(std::move(job));
  const auto done = std::make_shared<Future>();
  std::exception_ptr error;
  try {
    job();
  } catch (...) {
    error = std::current_exception();
  }
  done->set(error);
  return Work(done);
}

void Process::report_failure() noexcept {
  if (impl_->report_failure) impl_->report_failure();
}

void Process::abort(int exit_code) {
  const auto end = [exit_code] { MPI_Abort(MPI_COMM_WORLD, exit_code); };
  if (impl_->session != nullptr) {
    // The thread may be inside a blocking job; then MPI is called beside it, since all ends here anyway.
    try {
      static_cast<void>(impl_->session->thread().run(end));
      std::this_thread::sleep_for(std::chrono::seconds(2));
    } catch (const base::Error&) {
    }
  }
  end();
  std::_Exit(exit_code);
}

}  // namespace deepspeed::comm
