#pragma once

#include <string>
#include <vector>

#include "server/http/openai_door.h"
#include "server/openai/fields.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// A job that trains, by its id. NOT_FOUND names `param` where there is none.
absl::StatusOr<v1::Job> GetTuned(OpenAiDoor& door, const std::string& id, const char* param);
// Jobs that train, the newest first, behind the one that is named; without what GetTuned has.
absl::StatusOr<v1::ListJobsResponse> ListTuned(OpenAiDoor& door, int limit,
                                               const std::string& after, bool succeeded);

// What jobs have trained, as models. Of the one thread that serves the request.
class TunedModels {
 public:
  // Of a list: the newest.
  static constexpr int kMost = 500;

  // Borrowed.
  explicit TunedModels(OpenAiDoor& door) : door_(door) {}
  absl::Status AddTo(std::vector<openai::Json>& models);
  absl::Status Get(const std::string& model);
  // Removes what the job has delivered.
  absl::Status Delete(const std::string& model);

 private:
  // The job of such a name, which has delivered.
  absl::StatusOr<v1::Job> Find(const std::string& model);

  OpenAiDoor& door_;
};

}  // namespace sft::server
