#include "tests/unit/worker/engine/dist/run_ranks.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/dist/thread_communicator.h"

namespace sft::engine {

namespace {

// torch notes every collective of a process in one record that it does not lock as it grows: fine
// where a process is one rank, a crash where ranks are threads. Read once, by the first collective.
[[maybe_unused]] const int no_record = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

// Ranks as threads use the cores that there are, and one rank has the bits of several only where
// they divide products alike: so the thread of the test has one, too.
bool UseOneThread() {
  at::set_num_threads(1);
  return true;
}
[[maybe_unused]] const bool one_thread = UseOneThread();

// Runs `rank_body` of each rank on a thread of its own.
void RunThreads(int world, const std::function<void(int)>& rank_body) {
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        UseOneThread();
        rank_body(rank);
      } catch (const std::exception&) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

void RunRanks(int world, const std::function<void(Communicator&)>& body) {
  auto ranks = MakeThreadCommunicators(world, std::chrono::minutes(10));
  RunThreads(world, [&](int rank) {
    const auto comm = std::move(ranks[rank]);
    body(*comm);
  });
}

void RunRanksOverGloo(int world, const std::function<void(Communicator&)>& body,
                      std::chrono::milliseconds timeout) {
  std::promise<uint16_t> listening;
  std::shared_future<uint16_t> port = listening.get_future().share();
  RunThreads(world, [&](int rank) {
    RendezvousOptions options{.rank = rank, .world = world, .prefix = "test", .timeout = timeout};
    if (rank == 0) {
      options.on_listening = [&](uint16_t got) { listening.set_value(got); };
    } else {
      options.port = port.get();
    }
    const Rendezvous rendezvous(std::move(options));
    const auto comm = MakeCommunicator(rendezvous, at::kCPU);
    body(*comm);
  });
}

}  // namespace sft::engine
