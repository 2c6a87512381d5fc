#pragma once

#include <string>

#include "server/http/openai_creates.h"
#include "server/http/openai_door.h"
#include "server/openai/errors.h"
#include "server/openai/models.h"
#include "server/openai/request.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server {

// One request to the OpenAI-compatible endpoint, from its route to the last byte of its answer. Of
// the one thread that serves it.
class OpenAiCall {
 public:
  // Both borrowed.
  OpenAiCall(OpenAiDoor& door, OpenAiCreates& creates)
      : door_(door), creates_(creates), http_(door.http) {}

  // Whether a path is one of the endpoint's: what lies below them is refused here, not as a page.
  static bool Takes(const std::string& path);
  void Run();
  // Answers with an error in place of that.
  void Refuse(const absl::Status& status);

 private:
  // "/jobs/JOB" and what follows it.
  struct Route {
    std::string job;  // empty: the path names none
    std::string page;
  };
  static Route RouteOf(const std::string& path);

  absl::Status Serve();
  // What a job that serves is asked.
  absl::Status Ask(const Route& route);
  absl::Status Models(const Route& route);
  absl::Status Complete(const Route& route, bool chat);
  absl::Status Tokenize(const Route& route);
  absl::Status Detokenize(const Route& route);
  absl::Status Tokenizer(const Route& route);
  absl::Status Stream(const openai::Asked& asked, const openai::Model& model);

  absl::StatusOr<openai::Model> Choose(const std::string& model, const Route& route) const;

  OpenAiDoor& door_;
  OpenAiCreates& creates_;
  HttpCall& http_;
  openai::Asks asks_ = openai::Asks::kModel;
  v1::ListServedModelsResponse served_;
};

}  // namespace sft::server
