#include "worker/rank/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <vector>

#include "common/base/bytes.h"
#include "common/io/file.h"
#include "common/plan/parameters.h"
#include "common/plan/targets.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/model_text.h"
#include "worker/engine/data/runaway.h"
#include "worker/engine/data/tokenizer_files.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"
#include "worker/rank/answer_job.h"
#include "worker/rank/checkpoint_model.h"
#include "worker/rank/evaluation_task.h"
#include "worker/rank/export_job.h"
#include "worker/rank/memory_limit.h"
#include "worker/rank/runaway_report.h"
#include "worker/rank/template_report.h"

namespace sft::rank {
namespace {

// Progress events at most this often.
constexpr Nanos kProgressInterval = std::chrono::seconds(1);

// Everything of the model that can be wrong without computing anything: its config.json, what the
// job asks of it, and of the weights' headers each tensor's name, shape and form. Returns how many
// tokens it has embeddings for.
int64_t CheckModel(const Launch& launch) {
  const auto config = engine::ReadConfig(launch.file.model_dir);
  engine::ModelLayout layout = engine::MakeLayout(config);
  engine::PrepareLayout(layout, launch.spec);
  if (const auto problem = plan::CheckJob(config, launch.spec)) {
    throw engine::UserError(problem->key + ": " + problem->message, "bad_model",
                            "change the job, or give another model");
  }
  if (const auto problem = plan::CheckStages(config, launch.spec)) {
    throw engine::UserError(problem->key + ": " + problem->message, "bad_model",
                            "change the job, or give another model");
  }
  // Said at submit too, where the model was known then.
  for (const spec::Problem& remark : plan::WarnOfTargets(config, launch.spec)) {
    fmt::print("warning: {}: {}\n", remark.key, remark.message);
  }
  if (!launch.file.adapter_dir.empty()) {
    const engine::Adapter adapter = engine::ReadAdapter(launch.file.adapter_dir, config.prefix);
    engine::CheckBase(adapter.config, launch.file.model_name);
    engine::FitAdapter(adapter, layout, launch.spec);
  }
  const engine::BaseWeights base(launch.file.model_dir, layout, at::kCPU);
  if (config.stored.form == plan::StoredForm::kNf4) base.QuantizeAsStored(layout);
  fmt::print("model {}: {} of weights\n", launch.file.model_dir,
             BytesText(static_cast<int64_t>(base.files().TotalBytes())));
  return config.vocab;
}

void PrintSkipped(const engine::DatasetStats& stats, std::string_view place) {
  if (stats.skipped_total() == 0) return;
  fmt::print("{} {} left out:\n", stats.skipped_total(),
             stats.skipped_total() == 1 ? "row is" : "rows are");
  for (const engine::SkippedRow& row : stats.skipped_rows) {
    fmt::print("  {} {}: {}: {}\n", place, row.line, engine::RowProblemName(row.problem),
               row.reason);
  }
}

void PrintLeftOut(const engine::DatasetStats& stats, std::string_view place) {
  if (stats.held_out > 0) {
    fmt::print("  {} rows of the file are on the other side of data.val_split\n", stats.held_out);
  }
  if (stats.repeated == 0) return;
  fmt::print("  {} left out as repeats of an earlier one (data.dedup), in {} {}{}\n",
             stats.repeated == 1 ? "1 row is" : fmt::format("{} rows are", stats.repeated), place,
             fmt::join(stats.repeats, ", "),
             stats.repeated > static_cast<int64_t>(stats.repeats.size()) ? ", ..." : "");
}

void PrintCut(const engine::DatasetStats& stats) {
  if (stats.cut == 0) return;
  fmt::print(
      "  {} longer than a sequence {} cut or split (data.on_long_rows) into documents, {} in "
      "all; {} tokens are left out, {} of them with loss\n",
      stats.cut == 1 ? "1 row" : fmt::format("{} rows", stats.cut), stats.cut == 1 ? "is" : "are",
      stats.documents, stats.cut_tokens, stats.cut_loss_tokens);
}

std::vector<channel::SkippedRows> SkippedBy(const engine::DatasetStats& stats) {
  std::vector<channel::SkippedRows> skipped;
  for (int i = 0; i < engine::kRowProblems; ++i) {
    if (stats.skipped[i] == 0) continue;
    skipped.push_back(
        {engine::RowProblemName(static_cast<engine::RowProblem>(i)), stats.skipped[i]});
  }
  return skipped;
}

channel::PreparedEvent PrepareFile(const engine::ChatTokenizer& tokenizer,
                                   engine::PrepareOptions options, RunawayScene scene,
                                   const char* what, int64_t vocab, EventLog& events,
                                   const Clock& clock) {
  scene.data_name = options.Name();
  ReportRunaways(std::move(scene), clock);
  MonoTime last{};
  int64_t reported = -1;
  options.progress = [&](int64_t done, int64_t total) {
    if (done == reported || (clock.Mono() - last < kProgressInterval && done < total)) return;
    last = clock.Mono();
    reported = done;
    events.Write(channel::ProgressEvent{.phase = "tokenise", .done = done, .total = total});
  };
  const engine::PreparedDataset prepared = engine::PrepareDataset(tokenizer, options);
  RefuseTokensWithoutEmbedding(tokenizer.tokenizer(), *prepared.dataset, options.Name(), vocab);
  const engine::DatasetStats& stats = prepared.dataset->stats();
  fmt::print("{} data {}: {} of {} rows, {} tokens, {} of them with loss, longest row {}{}\n", what,
             options.Name(), stats.used, stats.rows, stats.tokens, stats.loss_tokens, stats.longest,
             prepared.from_cache ? " (from the cache)" : "");
  fmt::print("  {}\n", data::FormsText(stats.forms));
  PrintLeftOut(stats, prepared.place);
  PrintCut(stats);
  PrintSkipped(stats, prepared.place);
  return {.rows = stats.rows,
          .used = stats.used,
          .skipped = stats.skipped_total(),
          .skipped_by = SkippedBy(stats),
          .skipped_tokens = stats.skipped_tokens,
          .skipped_loss_tokens = stats.skipped_loss_tokens,
          .tokens = stats.tokens,
          .loss_tokens = stats.loss_tokens,
          .from_cache = prepared.from_cache,
          .forms = data::FormsText(stats.forms),
          .documents = stats.documents,
          .cut = stats.cut,
          .cut_tokens = stats.cut_tokens,
          .cut_loss_tokens = stats.cut_loss_tokens,
          .repeated = stats.repeated};
}

// Adds what was found in a file to what was found in all.
void Add(const channel::PreparedEvent& file, bool first, channel::PreparedEvent& all) {
  all.rows += file.rows;
  all.used += file.used;
  all.skipped += file.skipped;
  for (const channel::SkippedRows& skipped : file.skipped_by) {
    const auto same =
        std::ranges::find(all.skipped_by, skipped.reason, &channel::SkippedRows::reason);
    if (same == all.skipped_by.end()) {
      all.skipped_by.push_back(skipped);
    } else {
      same->rows += skipped.rows;
    }
  }
  all.skipped_tokens += file.skipped_tokens;
  all.skipped_loss_tokens += file.skipped_loss_tokens;
  all.tokens += file.tokens;
  all.loss_tokens += file.loss_tokens;
  all.from_cache = file.from_cache && (first || all.from_cache);
  all.forms += (all.forms.empty() || file.forms.empty() ? "" : "; ") + file.forms;
  all.documents += file.documents;
  all.cut += file.cut;
  all.cut_tokens += file.cut_tokens;
  all.cut_loss_tokens += file.cut_loss_tokens;
  all.repeated += file.repeated;
}

// An adapter answers worse to conversations that are written otherwise than those it learnt from.
void WarnOfTemplate(const Launch& launch, EventLog& events) {
  const std::string& adapter = launch.file.adapter_dir;
  if (adapter.empty() || !io::Exists(adapter + "/tokenizer_config.json")) return;
  const auto theirs = engine::FindTemplate(engine::TextFiles(adapter), "");
  const auto ours = engine::FindTemplate(engine::TextFiles(launch.file.model_dir),
                                         launch.spec.data.chat_template);
  if (theirs.source.empty() || theirs.source == ours.source) return;
  const std::string warning =
      "the adapter that this training starts from was trained with another chat template than "
      "this job's (data.chat_template)";
  fmt::print("{}\n", warning);
  events.Write(channel::WarningEvent{.message = warning});
}

void Prepare(const Launch& launch, const MemoryLimit& limit, EventLog& events, const Clock& clock) {
  RunawayScene scene{.event_file = EventPath(launch, "prepare"), .limit = limit};
  ReportRunaways(scene, clock);
  const int64_t vocab = CheckModel(launch);
  const auto tokenizer = engine::ChatTokenizer::OpenForJob(launch.file.model_dir, launch.spec);
  if (!tokenizer.note().empty()) fmt::print("{}\n", tokenizer.note());
  TellTemplate(launch.spec, tokenizer, events);
  WarnOfTemplate(launch, events);
  const auto prepare = [&](const std::vector<channel::RowFile>& files, const char* what,
                           auto options_of) {
    channel::PreparedEvent all;
    for (engine::PrepareOptions& options : OptionsOfFiles(launch, files, options_of)) {
      const bool first = options.earlier.empty();
      scene.data_name = options.name;
      Add(PrepareFile(tokenizer, std::move(options), scene, what, vocab, events, clock), first,
          all);
    }
    return all;
  };
  channel::PreparedEvent training =
      prepare(TrainingFiles(launch), "training", engine::PrepareOptions::ForTraining);
  const auto held = ValidationFiles(launch);
  training.validation = prepare(held, "validation", engine::PrepareOptions::ForValidation).used;
  if (training.used == 0 || (!held.empty() && training.validation == 0)) {
    throw engine::UserError(
        fmt::format("no row of the job's files is left for {}",
                    training.used == 0 ? "training" : "validation (data.val_split)"),
        "bad_rows", "change data.val_split or data.dedup, or give other files");
  }
  events.Write(training);
  events.Sync();
}

void PrepareEvaluation(const Launch& launch, const MemoryLimit& limit, EventLog& events,
                       const Clock& clock) {
  RunawayScene scene{.event_file = EventPath(launch, "prepare"), .limit = limit};
  ReportRunaways(scene, clock);
  const auto [positions, vocab] = CheckAnswering(launch);
  const auto tokenizer = OpenTokenizer(OptionsFor(launch));
  TellTemplate(launch.spec, tokenizer, events);
  const channel::PreparedEvent rows =
      PrepareFile(tokenizer, HeldOutRows(launch), scene, "held-out", vocab, events, clock);
  const EvaluationTask task(launch);  // finds the rows again, and that they can be asked
  task.CheckLengths(positions);
  fmt::print("{} rows are asked and graded\n", task.lines());
  events.Write(rows);
  events.Sync();
}

}  // namespace

void RefuseTokensWithoutEmbedding(const engine::Tokenizer& tokenizer,
                                  const engine::Dataset& dataset, const std::string& name,
                                  int64_t vocab) {
  if (tokenizer.vocabulary_size() <= vocab) return;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const engine::Document document = dataset.Get(i);
    for (const int32_t id : document.tokens) {
      if (id < vocab) continue;
      throw engine::UserError(
          fmt::format("{}, line {}: its token {} (\"{}\") is none of the model's, which has "
                      "embeddings for {} (vocab_size in config.json)",
                      name, document.line, id, tokenizer.Decode({&id, 1}, /*skip_special=*/false),
                      vocab),
          "token_without_embedding",
          "take it out of the row or the chat template, or give the model its own tokenizer");
    }
  }
}

void RunPrepare(Launch launch, EventLog& events, const Clock& clock) {
  const engine::SignalStack signal_stack;
  const MemoryLimit limit = MemoryLimitOf(launch.file);
  try {
    WriteCheckpointModel(launch);  // nobody's rows: as large as the model is
    UseCheckpointModel(launch);
    ApplyMemoryLimit(limit);
    if (launch.spec.evaluates()) return PrepareEvaluation(launch, limit, events, clock);
    if (launch.spec.generates()) return PrepareAnswers(launch, events);
    if (launch.spec.exports()) return PrepareExport(launch, limit, events, clock);
    Prepare(launch, limit, events, clock);
  } catch (const std::bad_alloc&) {
    ThrowRefusedMemory(limit, "");
  }
}

}  // namespace sft::rank
