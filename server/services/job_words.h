#pragma once

#include <string_view>

#include "common/base/status.h"
#include "server/store/job_lists.h"

namespace sft::server {

// Adds the words of ListJobsRequest.filter: "state=running,pending owner=ann llama". docs/cli.md
// says what there is. INVALID_ARGUMENT for a word that is none, and for one that the filter has
// already with another value.
absl::Status AddWords(std::string_view text, store::JobFilter& filter);

}  // namespace sft::server
