#include "client/base/job_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {

absl::Status NoGroup(const std::string& group) {
  return NotFound(fmt::format(
      "no group \"{}\": a job joins one with `sftctl submit --group` or job.group", group));
}

absl::Status CheckGroup(const std::string& group, const v1::ListJobsResponse& page) {
  const bool known = std::all_of(page.jobs().begin(), page.jobs().end(), [&](const v1::Job& job) {
    return group.empty() || job.group() == group;
  });
  if (known) return absl::OkStatus();
  return FailedPrecondition("the server is older than groups of jobs (--group): upgrade it");
}

absl::Status CheckFiltered(const v1::ListJobsRequest& request, const v1::ListJobsResponse& page) {
  if (request.filter().empty() || page.filtered()) return absl::OkStatus();
  return FailedPrecondition("the server is older than the filter of jobs (--filter): upgrade it");
}

absl::StatusOr<std::vector<v1::Job>> JobsOfGroup(Connection& connection, const GroupFilter& filter,
                                                 size_t limit) {
  v1::ListJobsRequest request;
  request.set_group(filter.group);
  request.set_project(filter.project);
  for (const v1::Job::State state : filter.states) request.add_states(state);
  request.set_page_size(1000);
  std::vector<v1::Job> jobs;
  do {
    SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse page,
                         connection.Call(&v1::JobService::Stub::ListJobs, request));
    SFT_RETURN_IF_ERROR(CheckGroup(filter.group, page));
    jobs.insert(jobs.end(), page.jobs().begin(), page.jobs().end());
    if (jobs.size() > limit) {
      return InvalidArgument(fmt::format("group \"{}\" has more than {} such jobs; name the jobs",
                                         filter.group, limit));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (jobs.empty() && !filter.states.empty()) {
    request.clear_states();
    request.set_page_size(1);
    SFT_ASSIGN_OR_RETURN(const v1::ListJobsResponse any,
                         connection.Call(&v1::JobService::Stub::ListJobs, request));
    SFT_RETURN_IF_ERROR(CheckGroup(filter.group, any));
    if (any.jobs().empty()) return NoGroup(filter.group);
  } else if (jobs.empty()) {
    return NoGroup(filter.group);
  }
  std::reverse(jobs.begin(), jobs.end());
  return jobs;
}

}  // namespace sft::client
