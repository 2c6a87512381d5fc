#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <string>

#include "server/door/methods.h"
#include "server/http/body_parsers.h"
#include "server/http/http_call.h"
#include "server/openai/models.h"
#include "server/openai/request.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server {

// One request to the OpenAI-compatible endpoint, from its route to the last byte of its answer. Of
// the one thread that serves it.
class OpenAiCall {
 public:
  // All borrowed.
  OpenAiCall(Door& door, const Methods& methods, BodyParsers& parsers, HttpCall& http)
      : door_(door), methods_(methods), parsers_(parsers), http_(http) {}

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
  absl::Status Models(const Route& route);
  absl::Status Complete(const Route& route, bool chat);
  absl::Status Tokenize(const Route& route);
  absl::Status Detokenize(const Route& route);
  absl::Status Tokenizer(const Route& route);
  absl::Status Stream(const openai::Asked& asked, const openai::Model& model);

  absl::StatusOr<std::string> Body();
  absl::StatusOr<openai::Model> Choose(const std::string& model, const Route& route) const;
  absl::Status Respond(std::string body);

  // A call of a method through the door. `take` gets each answer; false: nobody wants more.
  using TakeMessage = std::function<bool(const google::protobuf::Message& answer)>;
  absl::Status Call(const char* method, const google::protobuf::Message& request,
                    const TakeMessage& take);
  template <typename Answer>
  absl::StatusOr<Answer> CallOnce(const char* method, const google::protobuf::Message& request);

  Door& door_;
  const Methods& methods_;
  BodyParsers& parsers_;
  HttpCall& http_;
  v1::ListServedModelsResponse served_;
};

}  // namespace sft::server
