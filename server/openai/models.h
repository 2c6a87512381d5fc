#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/openai/fields.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server::openai {

// Jobs that serve, as models: "JOB" is what the job was started to serve, and "JOB:base" the base
// beside its adapter.

// Those that take questions.
std::vector<Json> ServedModels(const v1::ListServedModelsResponse& served);
// GET /v1/models.
std::string ModelList(std::vector<Json> models);
// GET /v1/models/MODEL.
absl::StatusOr<std::string> ModelPage(const v1::ListServedModelsResponse& served,
                                      const std::string& model);

// A model that somebody asks for.
struct Model {
  std::string id;
  std::string job;
  bool base = false;
};

// Which one a request means: `model` of its body, which may be empty, and `job` of its path, which
// may be too. Where neither is given and one job serves, it is that one. NOT_FOUND names those that
// there are.
absl::StatusOr<Model> ChooseModel(const v1::ListServedModelsResponse& served,
                                  const std::string& model, const std::string& job);

}  // namespace sft::server::openai
