#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/data_report.h"
#include "worker/engine/data/dataset.h"
#include "worker/preview/preview.h"

namespace sft::preview {

double Share(int64_t part, int64_t whole);
// A text as a terminal may show it: what would move its cursor, change colours or hide is "_". Rows
// are anybody's.
std::string Shown(std::string_view text);

// What a job with these options would train on.
struct JobRows {
  std::string refusal;  // why it would be refused; empty: it would not
  engine::DatasetStats training, validation;
  engine::DataReport report;  // of the training rows, as they would be cut
  bool refused() const { return !refusal.empty(); }
};

// The job that the options speak of. InvalidArgument names the key that is wrong.
absl::StatusOr<spec::JobSpec> JobOf(const Options& options);

// Reads the rows as `sft-rank prepare` of that job would; files are made in `folder`.
JobRows JobRowsOf(const Options& options, const engine::ChatTokenizer& tokenizer,
                  const std::filesystem::path& folder);
std::string JobRowsText(const Options& options, const JobRows& rows, std::string_view place);
nlohmann::ordered_json JobRowsJson(const Options& options, const JobRows& rows);

}  // namespace sft::preview
