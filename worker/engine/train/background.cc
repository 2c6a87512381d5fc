#include "worker/engine/train/background.h"

#include <exception>
#include <utility>

namespace sft::engine {

void Background::Start(Work work) {
  Wait();
  error_.clear();
  cancelled_ = false;
  done_ = false;
  thread_ = std::thread([this, work = std::move(work)] {
    try {
      work(cancelled_);
    } catch (const std::exception& error) {
      error_ = error.what();
      if (error_.empty()) error_ = "unknown error";
    }
    done_ = true;
  });
}

void Background::Wait() {
  if (thread_.joinable()) thread_.join();
}

void Background::Cancel() {
  cancelled_ = true;
  Wait();
}

}  // namespace sft::engine
