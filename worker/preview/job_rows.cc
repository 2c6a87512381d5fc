#include "worker/preview/job_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/utf8.h"
#include "common/spec/hold_out.h"
#include "common/spec/resolve.h"
#include "common/spec/visit.h"
#include "worker/engine/base/error.h"

namespace sft::preview {

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string Shown(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\t"), text.size());
    shown += WithoutHidden(text.substr(0, end));
    if (end < text.size()) shown += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return shown;
}

absl::StatusOr<spec::JobSpec> JobOf(const Options& options) {
  // What a job must have, and no row depends on.
  std::vector<spec::Override> overrides = {{"job.model", "model", "--model"},
                                           {"job.data", options.shown(), "FILE"},
                                           {"compute.gpu_type", "CPU", "sft-data"},
                                           {"training.loss", options.loss, "--loss"}};
  for (const auto& [key, value] : {std::pair("data.alpaca_prompt", &options.alpaca_prompt),
                                   std::pair("data.text_documents", &options.text_documents)}) {
    if (!value->empty()) overrides.push_back({key, *value, "sft-data"});
  }
  for (const std::string& setting : options.settings) {
    const size_t equals = setting.find('=');
    if (equals == setting.npos || equals == 0) {
      return InvalidArgument(fmt::format("--set {}: must be KEY=VALUE", setting));
    }
    overrides.push_back({setting.substr(0, equals), setting.substr(equals + 1), "--set"});
  }
  spec::Resolution resolved = spec::Resolve("", "job.toml", overrides);
  if (!resolved.ok()) {
    const spec::Problem& problem = resolved.problems.front();
    return InvalidArgument(fmt::format("{}: {}", problem.key, problem.message));
  }
  spec::JobSpec job = std::move(resolved.spec);
  job.hyperparameters.sequence_length = static_cast<int>(options.sequence_length);
  job.data.loss_on = options.loss_on_all ? spec::LossOn::kAll : spec::LossOn::kAssistant;
  job.data.columns = options.columns;
  job.data.roles = options.roles;
  return job;
}

JobRows JobRowsOf(const Options& options, const engine::ChatTokenizer& tokenizer,
                  const std::filesystem::path& folder) {
  JobRows rows;
  const auto prepare = [&](engine::PrepareOptions prepared) {
    prepared.name = options.shown();
    return engine::PrepareDataset(tokenizer, prepared).dataset;
  };
  try {
    const auto training =
        prepare(engine::PrepareOptions::ForTraining(options.job, options.file, folder));
    rows.training = training->stats();
    rows.report =
        engine::ReportOn(*training, options.sequence_length, options.batch, options.pairs());
    const auto held = spec::ParseHoldOut(options.job.data.val_split);
    if (held.ok() && held->on()) {
      rows.validation =
          prepare(engine::PrepareOptions::ForValidation(options.job, options.file, folder))
              ->stats();
      if (rows.validation.used == 0) rows.refusal = "no row is left for validation";
    }
    if (rows.training.used == 0) rows.refusal = "no row is left for training";
  } catch (const engine::UserError& error) {
    rows.refusal = error.what();
    if (!error.advice().empty()) rows.refusal += "\n" + error.advice();
  }
  return rows;
}

std::string JobRowsText(const Options& options, const JobRows& rows, std::string_view place) {
  const spec::JobSpec::Data& data = options.job.data;
  if (rows.refused()) return fmt::format("\nThis job would be refused: {}\n", Shown(rows.refusal));
  const engine::DatasetStats& stats = rows.training;
  std::string text = fmt::format(
      "\nThis job would train on {} rows in {} documents: {} tokens, {:.1f} % of them with loss\n",
      stats.used, stats.documents, stats.tokens, 100 * Share(stats.loss_tokens, stats.tokens));
  if (!data.val_split.empty()) {
    text += fmt::format("  held out    {} rows for validation (data.val_split = {})\n",
                        rows.validation.used, data.val_split);
  }
  if (data.dedup != spec::Dedup::kOff) {
    text += fmt::format("  repeats     {} rows left out (data.dedup = {}){}{}{}\n", stats.repeated,
                        spec::EnumName(data.dedup),
                        stats.repeats.empty() ? "" : fmt::format(", first {} ", place),
                        fmt::join(stats.repeats, ", "),
                        stats.repeated > static_cast<int64_t>(stats.repeats.size()) ? ", ..." : "");
  }
  if (stats.skipped_total() > 0) {
    const int64_t too_long = stats.skipped[static_cast<size_t>(engine::RowProblem::kTooLong)];
    text += fmt::format("  left out    {} rows: {} too long, {} bad\n", stats.skipped_total(),
                        too_long, stats.skipped_total() - too_long);
  }
  if (stats.cut > 0) {
    text += fmt::format(
        "  cut         {} rows that are too long (data.on_long_rows = {}): {} tokens are in no "
        "document, {} of them with loss\n",
        stats.cut, spec::EnumName(data.on_long_rows), stats.cut_tokens, stats.cut_loss_tokens);
  }
  return text + fmt::format("  an epoch    {} steps of {} {}\n",
                            data.packing ? rows.report.packed_steps : rows.report.steps,
                            options.batch, data.packing ? "packed sequences" : "rows");
}

nlohmann::ordered_json JobRowsJson(const Options& options, const JobRows& rows) {
  if (rows.refused()) return {{"refused", rows.refusal}};
  const engine::DatasetStats& stats = rows.training;
  const bool packs = options.job.data.packing;
  return {{"refused", nullptr},
          {"rows", stats.used},
          {"documents", stats.documents},
          {"tokens", stats.tokens},
          {"loss_tokens", stats.loss_tokens},
          {"held_out", rows.validation.used},
          {"repeated", stats.repeated},
          {"left_out", stats.skipped_total()},
          {"cut", stats.cut},
          {"cut_tokens", stats.cut_tokens},
          {"cut_loss_tokens", stats.cut_loss_tokens},
          {"packing", packs},
          {"steps", packs ? rows.report.packed_steps : rows.report.steps}};
}

}  // namespace sft::preview
