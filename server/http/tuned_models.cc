#include "server/http/tuned_models.h"

#include <fmt/format.h>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "server/openai/errors.h"
#include "server/openai/tuned.h"
#include "sft/v1/storage_service.pb.h"

namespace sft::server {

absl::StatusOr<v1::Job> GetTuned(OpenAiDoor& door, const std::string& id, const char* param) {
  v1::GetJobRequest get;
  get.set_name(openai::JobIdOf(id));
  auto job = door.CallOnce<v1::Job>("JobService.GetJob", get);
  // What is no id at all is the id of nothing.
  if (absl::IsInvalidArgument(job.status())) job = NotFound(Message(job.status()));
  if (!job.ok()) return openai::NotFoundIn(param, job.status());
  if (job->kind() == v1::Job::SFT) return job;
  return openai::NotFoundIn(
      param, NotFound(fmt::format("job {} trains nothing", WithoutHidden(id.substr(0, 80)))));
}

absl::StatusOr<v1::ListJobsResponse> ListTuned(OpenAiDoor& door, int limit,
                                               const std::string& after, bool succeeded) {
  v1::ListJobsRequest list;
  list.set_page_size(limit);
  list.set_project(door.project());
  list.add_kinds(v1::Job::SFT);
  list.set_after(after);
  if (succeeded) list.add_states(v1::Job::SUCCEEDED);
  auto jobs = door.CallOnce<v1::ListJobsResponse>("JobService.ListJobs", list);
  if (!jobs.ok()) return openai::InParam("after", openai::NotFoundIn("after", jobs.status()));
  return jobs;
}

absl::Status TunedModels::AddTo(std::vector<openai::Json>& models) {
  SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs,
                       ListTuned(door_, kMost, "", /*succeeded=*/true));
  for (const v1::Job& job : jobs.jobs()) {
    if (!job.artifacts().empty()) models.push_back(openai::TunedModelJson(job));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> TunedModels::Find(const std::string& model) {
  std::string id = openai::JobOfModelName(model).value_or("");
  id.resize(std::min(id.find('@'), id.size()));
  SFT_ASSIGN_OR_RETURN(v1::Job job, GetTuned(door_, id, "model"));
  if (openai::ModelNameOf(job) == model && !job.artifacts().empty()) return job;
  return openai::NoModel(fmt::format("there is no model {}", WithoutHidden(model.substr(0, 200))));
}

absl::Status TunedModels::Get(const std::string& model) {
  SFT_ASSIGN_OR_RETURN(const v1::Job job, Find(model));
  return door_.Respond(DumpJson(openai::TunedModelJson(job)));
}

absl::Status TunedModels::Delete(const std::string& model) {
  SFT_ASSIGN_OR_RETURN(const v1::Job job, Find(model));
  v1::RemoveStoredRequest remove;
  remove.set_name(job.name());
  remove.add_kinds(v1::ARTIFACTS);
  SFT_RETURN_IF_ERROR(
      door_.CallOnce<v1::RemoveStoredResponse>("StorageService.RemoveStored", remove).status());
  return door_.Respond(
      DumpJson(openai::Json{{"id", model}, {"object", "model"}, {"deleted", true}}));
}

}  // namespace sft::server
