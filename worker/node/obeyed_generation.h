#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::worker {

// The highest generation of a server that this worker has obeyed, with its proof, kept in
// `generation` of the data folder beside the worker's id: a server that was replaced, by a restored
// backup or a standby, and comes back, is not obeyed. Not thread-safe.
class ObeyedGeneration {
 public:
  static absl::StatusOr<std::unique_ptr<ObeyedGeneration>> Open(const std::string& data_dir);

  // OK when the server may be obeyed; a higher generation is then kept, durably.
  // FAILED_PRECONDITION for one that was replaced, INVALID_ARGUMENT for a number that none can
  // have.
  absl::Status Obey(const v1::Welcome& welcome);
  // Tells the server what is kept.
  void Tell(v1::Register& message) const;

 private:
  explicit ObeyedGeneration(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  int64_t number_ = 0;  // 0: none yet
  std::string proof_;
};

}  // namespace sft::worker
