#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "client/base/upload.h"
#include "common/data/dataset_check.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client {

// What a value was resolved to; empty: the server did not say.
std::string ValueOf(const v1::ResolveJobResponse& resolution, std::string_view key);

// Arguments of sft-data for a job's keys that say how rows are written and what of them is learnt:
// `value_of` gives each as one would type it.
using ValueOfKey = std::function<std::string(std::string_view key)>;
std::vector<std::string> RowArguments(const ValueOfKey& value_of);

// What `submit` says of a file before it sends it: its rows by form, tokens with their share with
// loss, and how many rows are longer than a sequence. Where job.model is a folder of this machine
// the latter two are those of the first rows, by its tokenizer; else it is said that they are not
// known, and how to find out.
std::string RowsText(const LocalFile& file, const data::DatasetCheck& found,
                     const v1::ResolveJobResponse& resolution, const std::string& job_file);

}  // namespace sft::client
