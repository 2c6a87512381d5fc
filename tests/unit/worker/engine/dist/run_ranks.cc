#include "tests/unit/worker/engine/dist/run_ranks.h"

#include <cstdlib>
#include <exception>
#include <future>
#include <thread>
#include <vector>

namespace sft::engine {

namespace {

// torch notes every collective of a process in one record that it does not lock as it grows: fine
// where a process is one rank, a crash where ranks are threads. Read once, by the first collective.
[[maybe_unused]] const int no_record = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

}  // namespace

void RunRanks(int world, const std::function<void(Communicator&)>& body,
              std::chrono::milliseconds timeout) {
  std::promise<uint16_t> listening;
  std::shared_future<uint16_t> port = listening.get_future().share();
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RendezvousOptions options{
            .rank = rank, .world = world, .prefix = "test", .timeout = timeout};
        if (rank == 0) {
          options.on_listening = [&](uint16_t got) { listening.set_value(got); };
        } else {
          options.port = port.get();
        }
        const Rendezvous rendezvous(std::move(options));
        const auto comm = MakeCommunicator(rendezvous, at::kCPU);
        body(*comm);
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

}  // namespace sft::engine
