#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/store/job_lists.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// What a request asks to list, of the projects that its caller may see. INVALID_ARGUMENT for an
// order, a state or a page token that is none.
absl::StatusOr<store::JobFilter> FilterOf(const v1::ListJobsRequest& request,
                                          std::optional<std::vector<std::string>> visible);

// The page token of the page that begins there; empty: there is none.
std::string TokenOf(const store::JobFilter& filter, const std::optional<store::JobPlace>& next);

}  // namespace sft::server
