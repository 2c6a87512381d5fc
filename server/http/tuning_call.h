#pragma once

#include <string>

#include "server/http/openai_creates.h"
#include "server/http/openai_door.h"
#include "server/openai/fine_tuning.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// One request below /v1/fine_tuning: jobs that train, from their submit to their curves. Of the one
// thread that serves it.
class TuningCall {
 public:
  // Both borrowed.
  TuningCall(OpenAiDoor& door, OpenAiCreates& creates) : door_(door), creates_(creates) {}
  // `path` is what follows "/v1/fine_tuning". A status that is not OK is to be the answer.
  absl::Status Serve(const std::string& path);

 private:
  absl::Status Create();
  absl::StatusOr<v1::SubmitJobRequest> MakeSubmit(const openai::FineTuning& asked);
  absl::StatusOr<v1::File> File(const std::string& id, const char* param);
  absl::Status List();
  absl::Status Of(const std::string& id, std::string_view what);
  absl::Status Act(const std::string& id, std::string_view what);
  absl::Status Events(const v1::Job& job);
  absl::Status Checkpoints(const v1::Job& job);
  // Passes on the points of a job's curve.
  absl::Status ReadCurve(const v1::Job& job,
                         const std::function<void(const v1::Metric& point)>& take);

  OpenAiDoor& door_;
  OpenAiCreates& creates_;
};

}  // namespace sft::server
