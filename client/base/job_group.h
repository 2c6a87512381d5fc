#pragma once

#include <string>
#include <vector>

#include "client/base/connection.h"
#include "sft/v1/job.pb.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client {

// Which jobs a group has (job.group).
struct GroupFilter {
  std::string group;
  std::string project;                 // empty: all that the caller sees
  std::vector<v1::Job::State> states;  // empty: all
};

// The group's jobs, oldest first. NOT_FOUND where it has none in any state; INVALID_ARGUMENT for
// more than `limit`.
absl::StatusOr<std::vector<v1::Job>> JobsOfGroup(Connection& connection, const GroupFilter& filter,
                                                 size_t limit);

// An older server does not know groups and lists all jobs: an error in that case.
absl::Status CheckGroup(const std::string& group, const v1::ListJobsResponse& page);
// As CheckGroup, for the words of a filter.
absl::Status CheckFiltered(const v1::ListJobsRequest& request, const v1::ListJobsResponse& page);

// The NOT_FOUND of a group without jobs.
absl::Status NoGroup(const std::string& group);

}  // namespace sft::client
