#include "worker/daemon/model_requests.h"

#include <spdlog/spdlog.h>

#include "common/hub/model_name.h"

namespace sft::worker {
namespace {

constexpr size_t kMaxWaiting = 100;
constexpr std::chrono::hours kIdle{1};

}  // namespace

ModelRequests::ModelRequests(ModelStore& models, Agent& agent) : models_(models), agent_(agent) {
  thread_ = std::make_unique<IoThread>("model requests", [this]() -> Nanos {
    v1::ModelRequest next;
    {
      const MutexLock lock(mutex_);
      if (waiting_.empty()) return kIdle;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Carry(next);
    return Nanos(0);
  });
}

ModelRequests::~ModelRequests() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  thread_.reset();
}

void ModelRequests::Take(const v1::ModelRequest& request) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) {
      spdlog::error("model {}: {} requests wait already: this one is dropped", request.model(),
                    waiting_.size());
      return;
    }
    waiting_.push_back(request);
  }
  thread_->Wake();
}

void ModelRequests::Carry(const v1::ModelRequest& request) {
  const auto name = hub::ParseModelName(request.model());
  if (!name) return spdlog::error("the server asks for model \"{}\": ignored", request.model());
  absl::Status done;
  if (request.remove()) {
    done = models_.Remove(name->id);
  } else {
    const auto stop = [this] {
      const MutexLock lock(mutex_);
      return ending_;
    };
    done = models_
               .Fetch(*name, request.token(), stop,
                      [this](const std::string&) { agent_.NotifyChange(); })
               .status();
  }
  const char* what = request.remove() ? "removal" : "download";
  if (absl::IsNotFound(done) && request.remove()) {
    spdlog::info("model {}: {}", request.model(), Message(done));
  } else if (done.ok()) {
    spdlog::info("model {}: its {} is done, as an operator asked", request.model(), what);
  } else {
    spdlog::error("model {}: its {} failed: {}", request.model(), what, Message(done));
  }
  agent_.NotifyChange();
}

}  // namespace sft::worker
