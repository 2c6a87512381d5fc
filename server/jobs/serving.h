#pragma once

#include <functional>

#include "server/fleet/file_relay.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// Asks jobs of kind "serve": finds the process of a running one and passes question and answer on.
// Nothing of them is stored. Thread-safe.
class Serving {
 public:
  // Both are borrowed.
  Serving(Store& store, FileRelay& relay) : store_(store), relay_(relay) {}

  // Returns false when the reader is gone.
  using Take = std::function<bool(const v1::GenerateResponse& piece)>;
  // As JobService.Generate, whose caller may ask this job. Waits for the node, until `gone` says
  // that the reader has gone.
  absl::Status Ask(const v1::GenerateRequest& request, const Take& take,
                   const FileRelay::Gone& gone = nullptr);

 private:
  struct Place {
    std::string node, attempt_uid;
  };
  absl::StatusOr<Place> Find(const std::string& name);

  Store& store_;
  FileRelay& relay_;
};

}  // namespace sft::server
