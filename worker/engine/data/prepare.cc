#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>

#include "common/base/thread_time.h"
#include "common/data/row_reader.h"
#include "common/io/sha256.h"
#include "common/spec/mixture.h"
#include "common/spec/visit.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/cache_file.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/encode_row.h"
#include "worker/engine/data/files.h"
#include "worker/engine/data/long_rows.h"
#include "worker/engine/data/preference_row.h"
#include "worker/engine/data/row.h"
#include "worker/engine/data/row_source.h"
#include "worker/engine/data/runaway.h"
#include "worker/engine/data/select_rows.h"

namespace sft::engine {
namespace {

// Part of the cache's key: raised whenever equal input would give other tokens or another mask.
constexpr int kEncodingVersion = 4;
// The same for rows of preferences alone.
constexpr int kPreferenceVersion = 2;
// Rows a thread takes at once.
constexpr size_t kBlockRows = 64;

struct Outcome {
  std::vector<EncodedRow> documents;
  std::optional<SkippedRow> skipped;
  std::optional<data::Form> form;  // nothing: the row is not JSON
  bool cut = false;
  int64_t cut_tokens = 0, cut_loss_tokens = 0;
  int64_t long_tokens = 0, long_loss_tokens = 0;  // of a row that is too long
};

// Ends the process when one row takes too much processor time: templates and tokenizers can make
// the machine work without end in one step, in which nothing else looks at the time.
class RowWatch {
 public:
  // Of one thread that encodes; lives on it.
  class Thread {
   public:
    explicit Thread(RowWatch& watch) : watch_(watch), began_(time_.Used()) {
      const std::lock_guard lock(watch_.mutex_);
      watch_.threads_.push_back(this);
    }
    ~Thread() {
      const std::lock_guard lock(watch_.mutex_);
      std::erase(watch_.threads_, this);
    }
    Thread(const Thread&) = delete;
    Thread& operator=(const Thread&) = delete;
    // 0: what comes before the first row.
    void Begin(int64_t line) {
      SetLineInWork(line);
      const Nanos used = time_.Used();
      const std::lock_guard lock(mutex_);
      line_ = line;
      began_ = used;
    }

   private:
    friend RowWatch;
    RowWatch& watch_;
    const SignalStack signal_stack_;
    const ThreadTime time_ = ThreadTime::OfThisThread();
    std::mutex mutex_;
    int64_t line_ = 0;
    Nanos began_;
  };

  explicit RowWatch(Nanos limit)
      : limit_(limit), watcher_([this](const std::stop_token& stop) { Watch(stop); }) {}

 private:
  static constexpr std::chrono::seconds kInterval{1};

  void Watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, stop, kInterval, [&stop] { return stop.stop_requested(); })) {
      for (Thread* const thread : threads_) {
        const std::lock_guard thread_lock(thread->mutex_);
        const Nanos took = thread->time_.Used() - thread->began_;
        if (took <= limit_) continue;
        EndAsRunaway({.kind = Runaway::Kind::kTime,
                      .line = thread->line_,
                      .amount = std::chrono::duration_cast<std::chrono::seconds>(took).count()});
      }
    }
  }

  const Nanos limit_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<Thread*> threads_;
  std::jthread watcher_;  // last: it uses the others
};

// Encodes lines on several threads, the calling one among them; outcomes are in the lines' order.
class ParallelEncoder {
 public:
  ParallelEncoder(const RowEncoder& encoder, const PrepareOptions& options,
                  const std::vector<Line>& lines, int64_t bytes_total, RowWatch& watch)
      : encoder_(encoder),
        options_(options),
        lines_(lines),
        bytes_total_(bytes_total),
        outcomes_(lines.size()),
        watch_(watch) {}

  std::vector<Outcome> Run() {
    const int wanted = options_.threads > 0 ? options_.threads
                                            : static_cast<int>(std::thread::hardware_concurrency());
    const size_t blocks = (lines_.size() + kBlockRows - 1) / kBlockRows;
    const size_t threads = std::clamp<size_t>(static_cast<size_t>(std::max(wanted, 1)), 1, blocks);
    std::vector<std::exception_ptr> failures(threads);
    {
      std::vector<std::jthread> others;
      try {
        for (size_t i = 1; i < threads; ++i) {
          others.emplace_back([this, &failures, i] { failures[i] = Work(/*reports=*/false); });
        }
      } catch (const std::system_error&) {
        // There is no room for more stacks: those that there are do it all.
      }
      failures[0] = Work(/*reports=*/true);
    }
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    if (options_.progress) options_.progress(bytes_total_, bytes_total_);
    return std::move(outcomes_);
  }

 private:
  std::exception_ptr Work(bool reports) {
    RowWatch::Thread watched(watch_);
    try {
      for (;;) {
        const size_t begin = next_.fetch_add(kBlockRows);
        if (begin >= lines_.size() || failed_) return nullptr;
        int64_t bytes = 0;
        for (size_t i = begin; i < std::min(begin + kBlockRows, lines_.size()); ++i) {
          watched.Begin(lines_[i].number);
          outcomes_[i] = EncodeLine(lines_[i]);
          bytes += static_cast<int64_t>(lines_[i].text.size()) + 1;
        }
        const int64_t done = bytes_done_.fetch_add(bytes) + bytes;
        if (reports && options_.progress)
          options_.progress(std::min(done, bytes_total_), bytes_total_);
      }
    } catch (const std::exception&) {
      failed_ = true;
      return std::current_exception();
    }
  }

  Outcome EncodeLine(const Line& line) const {
    Outcome outcome;
    try {
      if (static_cast<int64_t>(line.text.size()) > data::kMaxRowBytes) {
        throw RowError(RowProblem::kTooLong, fmt::format("a line of {} bytes, at most {} are read",
                                                         line.text.size(), data::kMaxRowBytes));
      }
      if (data::Compares(options_.learns)) {
        EncodePreference(line, outcome);
        return outcome;
      }
      data::Form form = data::Form::kUnknown;
      const Row row = [&] {
        try {
          return options_.learns == data::Learns::kChosen
                     ? ParseChosen(line.text, options_.names, &form)
                     : ParseRow(line.text, options_.names, &form);
        } catch (const RowError& error) {
          if (error.problem() != RowProblem::kNotJson) outcome.form = form;
          throw;
        }
      }();
      outcome.form = form;
      EncodedRow encoded = encoder_.Encode(row);
      if (encoded.tokens.size() <= static_cast<size_t>(options_.sequence_length)) {
        outcome.documents.push_back(std::move(encoded));
      } else {
        outcome.long_tokens = static_cast<int64_t>(encoded.tokens.size());
        outcome.long_loss_tokens = encoded.LossTokens();
        FittedRow fitted = FitLongRow(encoder_, row, std::move(encoded), Rule());
        outcome.documents = std::move(fitted.documents);
        outcome.cut = true;
        outcome.cut_tokens = fitted.cut_tokens;
        outcome.cut_loss_tokens = fitted.cut_loss_tokens;
      }
      for (EncodedRow& document : outcome.documents) document.breaks = {};
    } catch (const RowError& error) {
      outcome.documents.clear();
      outcome.skipped = SkippedRow{line.number, error.problem(), error.what()};
    }
    return outcome;
  }

  LongRowRule Rule() const {
    return {options_.on_long_rows, options_.sequence_length,
            std::min(options_.split_overlap, std::max(options_.sequence_length / 2, 1))};
  }

  // Throws RowError.
  void EncodePreference(const Line& line, Outcome& outcome) const {
    data::Form form = data::Form::kUnknown;
    std::vector<MarkedAnswer> answers;
    try {
      answers = ParsePreference(line.text, options_.names, options_.learns, &form);
    } catch (const RowError& error) {
      if (error.problem() != RowProblem::kNotJson) outcome.form = form;
      throw;
    }
    outcome.form = form;
    EncodedAnswers encoded =
        EncodeAnswers(encoder_, answers, options_.loss_on == spec::LossOn::kAll, Rule());
    outcome.documents = std::move(encoded.documents);
    outcome.cut = encoded.cut_tokens > 0;
    outcome.cut_tokens = encoded.cut_tokens;
  }

  const RowEncoder& encoder_;
  const PrepareOptions& options_;
  const std::vector<Line>& lines_;
  const int64_t bytes_total_;
  std::vector<Outcome> outcomes_;  // each written by the thread that took its block
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> bytes_done_ = 0;
  std::atomic<bool> failed_ = false;
  RowWatch& watch_;
};

bool Refuses(spec::LongRows rule) {
  return rule == spec::LongRows::kError || rule == spec::LongRows::kSkip;
}

// Throws when rows have problems that the job does not skip; lists the first of them by line.
void RefuseRows(const std::vector<Outcome>& outcomes, const PrepareOptions& options,
                std::string_view place) {
  int64_t refused = 0;
  bool only_long = true, by_rule = true;
  std::string list;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.skipped || outcome.skipped->problem == RowProblem::kSameAnswers) continue;
    const bool too_long = outcome.skipped->problem == RowProblem::kTooLong;
    // A long row that the job's rule can make nothing of is a bad one.
    const bool by_length = too_long && Refuses(options.on_long_rows);
    if (by_length ? options.on_long_rows == spec::LongRows::kSkip
                  : options.on_bad_rows == spec::BadRows::kSkip) {
      continue;
    }
    only_long = only_long && too_long;
    by_rule = by_rule && by_length;
    if (++refused <= DatasetStats::kReportedRows) {
      list += fmt::format("\n  {} {}: {}", place, outcome.skipped->line, outcome.skipped->reason);
    }
  }
  if (refused == 0) return;
  if (refused > DatasetStats::kReportedRows) {
    list += fmt::format("\n  and {} more", refused - DatasetStats::kReportedRows);
  }
  const std::string key = by_rule ? "data.on_long_rows" : "data.on_bad_rows";
  // Answers that are compared are never cut.
  const bool compares = data::Compares(options.learns);
  const std::string_view cuts =
      by_rule    ? compares ? ", cut their prompts (data.on_long_rows = \"truncate_left\")"
                            : ", cut them (data.on_long_rows = \"truncate_right\", \"split\", ...)"
      : compares ? ""
                 : ", cut them (data.on_long_rows = \"truncate_right\")";
  throw UserError(
      fmt::format("{}: {} of {} rows cannot be used:{}", options.Name(), refused, outcomes.size(),
                  list),
      "bad_rows",
      fmt::format(
          "correct these rows, or leave them out with {} = \"skip\"{}", key,
          only_long ? fmt::format("{}, or raise hyperparameters.sequence_length", cuts) : ""));
}

CacheContents Collect(std::vector<Outcome> outcomes, const std::vector<Line>& lines) {
  CacheContents contents;
  contents.stats.rows = static_cast<int64_t>(outcomes.size());
  size_t tokens = 0;
  for (const Outcome& outcome : outcomes) {
    for (const EncodedRow& document : outcome.documents) tokens += document.tokens.size();
  }
  contents.tokens.reserve(tokens);  // to grow by doubling would take three times as much
  contents.loss.reserve(tokens);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    Outcome outcome = std::move(outcomes[i]);
    if (outcome.form) ++contents.stats.forms[static_cast<size_t>(*outcome.form)];
    if (!outcome.skipped) {
      ++contents.stats.used;
      contents.stats.cut += outcome.cut;
      contents.stats.cut_tokens += outcome.cut_tokens;
      contents.stats.cut_loss_tokens += outcome.cut_loss_tokens;
      for (const EncodedRow& document : outcome.documents) {
        contents.Add(document.tokens, document.loss, lines[i].number);
      }
      continue;
    }
    ++contents.stats.skipped[static_cast<size_t>(outcome.skipped->problem)];
    contents.stats.skipped_tokens += outcome.long_tokens;
    contents.stats.skipped_loss_tokens += outcome.long_loss_tokens;
    if (contents.stats.skipped_rows.size() < DatasetStats::kReportedRows) {
      contents.stats.skipped_rows.push_back(*std::move(outcome.skipped));
    }
  }
  return contents;
}

// Everything of the options that the rows depend on, but for the data.
std::string NamesText(const PrepareOptions& options, std::string_view bytes) {
  std::string text = fmt::format(
      "{}", static_cast<int>(data::ContainerOf(options.Name(), bytes.substr(0, 1 << 20))));
  for (const auto* names : {&options.names.columns, &options.names.roles}) {
    for (const auto& [theirs, ours] : *names) {
      text += fmt::format(" {}:{} {}", theirs.size(), theirs, ours);
    }
    text += " |";
  }
  if (options.names.stanford) text += " stanford";
  if (options.text_documents != spec::TextDocuments::kWhole) text += " documents by blank lines";
  if (options.hold_out.on()) {
    text +=
        fmt::format(" held {} {} {} {} {} {}", options.held_out_side, options.hold_out.share,
                    options.hold_out.rows, options.seed, options.group_by.size(), options.group_by);
  }
  if (options.learns != data::Learns::kTexts) {
    text += fmt::format(" learns {} {}", static_cast<int>(options.learns), kPreferenceVersion);
  }
  if (options.dedup != spec::Dedup::kOff) {
    text += fmt::format(" dedup {}{}", spec::EnumName(options.dedup), EarlierText(options));
  }
  return text;
}

std::string CacheKey(const ChatTokenizer& tokenizer, const PrepareOptions& options,
                     std::string_view bytes) {
  return io::Sha256Hex(fmt::format(
      "{} {} {} {} {} {} {} {} {} {}", kEncodingVersion, io::Sha256Hex(bytes), tokenizer.digest(),
      options.sequence_length, options.max_examples, static_cast<int>(options.loss_on),
      static_cast<int>(options.on_bad_rows), static_cast<int>(options.on_long_rows),
      options.split_overlap, NamesText(options, bytes)));
}

// Nothing when there is no whole cache file of this key.
std::shared_ptr<const Dataset> OpenCached(const std::filesystem::path& file, std::string_view key) {
  if (!std::filesystem::exists(file)) return nullptr;
  try {
    return Dataset::Open(file, key);
  } catch (const InternalError&) {
    return nullptr;  // cut short or damaged: made anew
  } catch (const UserError&) {
    return nullptr;  // another user's, or gone meanwhile
  }
}

PrepareOptions FromSpec(const spec::JobSpec& spec, std::filesystem::path file,
                        std::filesystem::path cache_dir) {
  PrepareOptions options;
  options.data = std::move(file);
  options.cache_dir = std::move(cache_dir);
  options.sequence_length = spec.hyperparameters.sequence_length;
  options.loss_on = spec.data.loss_on;
  options.on_bad_rows = spec.data.on_bad_rows;
  options.on_long_rows = spec.data.on_long_rows;
  options.split_overlap = spec.data.split_overlap;
  options.learns = data::LearnsOf(spec::EnumName(spec.training.loss), spec.job.kind);
  options.text_documents = spec.data.text_documents;
  options.names = data::NamesOf(spec.data.columns, spec.data.roles);
  options.names.stanford = spec.data.alpaca_prompt == spec::AlpacaPrompt::kStanford;
  return options;
}

// The same for rows of job.data, or of one of several files.
PrepareOptions OfJobData(const spec::JobSpec& spec, std::filesystem::path file,
                         std::filesystem::path cache_dir, size_t part) {
  PrepareOptions options = FromSpec(spec, std::move(file), std::move(cache_dir));
  const absl::StatusOr<std::vector<spec::TrainPart>> parts = spec::TrainParts(spec);
  const absl::StatusOr<spec::HoldOut> hold_out = spec::ParseHoldOut(spec.data.val_split);
  ThrowIfError(parts.status());
  ThrowIfError(hold_out.status());
  if (part >= parts->size()) throw InternalError("a file with rows that the job does not name");
  options.max_examples = (*parts)[part].max_examples;
  options.dedup = spec.data.dedup;
  options.group_by = spec.data.group_by;
  options.seed = spec.hyperparameters.seed;
  options.hold_out = *hold_out;
  return options;
}

}  // namespace

PrepareOptions PrepareOptions::ForTraining(const spec::JobSpec& spec, std::filesystem::path data,
                                           std::filesystem::path cache_dir, size_t part) {
  return OfJobData(spec, std::move(data), std::move(cache_dir), part);
}

PrepareOptions PrepareOptions::ForValidation(const spec::JobSpec& spec, std::filesystem::path data,
                                             std::filesystem::path cache_dir, size_t part) {
  if (!spec.data.val.empty()) return FromSpec(spec, std::move(data), std::move(cache_dir));
  PrepareOptions options = OfJobData(spec, std::move(data), std::move(cache_dir), part);
  options.held_out_side = true;
  return options;
}

PreparedDataset PrepareDataset(const ChatTokenizer& tokenizer, const PrepareOptions& options) {
  const MappedFile file_bytes = MappedFile::Open(options.data, options.stamp);
  const std::string key = CacheKey(tokenizer, options, file_bytes.bytes());
  const std::filesystem::path file = options.cache_dir / (key + ".rows");
  const std::string_view place =
      data::PlaceWord(data::ContainerOf(options.Name(), file_bytes.bytes().substr(0, 1 << 20)));
  if (std::shared_ptr<const Dataset> cached = OpenCached(file, key)) {
    // sft-worker removes what was not used for long: the time of change is that of the last use.
    // Where it cannot be set, the file is made anew some day.
    (void)utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
    return {.file = file, .dataset = std::move(cached), .from_cache = true, .place = place};
  }
  const RowSource source(file_bytes, options);
  const RowSelection selection = SelectRows(source.lines(), options);
  const std::vector<Line>& lines = selection.lines;
  if (lines.empty()) {  // another file has the rows
    CacheContents nothing;
    nothing.stats.held_out = selection.held_out;
    nothing.stats.repeated = selection.repeated;
    nothing.stats.repeats = selection.repeats;
    WriteCacheFile(file, key, nothing);
    return {.file = file, .dataset = Dataset::Open(file, key), .place = place};
  }
  RowWatch watch(options.row_limit);
  std::optional<RowEncoder> encoder;
  {
    const RowWatch::Thread watched(watch);  // it tries the template
    const bool texts = !data::Compares(options.learns);
    encoder.emplace(tokenizer, texts ? options.loss_on : spec::LossOn::kAssistant,
                    Refuses(options.on_long_rows) ? options.sequence_length : 0);
  }
  std::vector<Outcome> outcomes =
      ParallelEncoder(*encoder, options, lines, static_cast<int64_t>(source.bytes().size()), watch)
          .Run();
  RefuseRows(outcomes, options, place);
  CacheContents contents = Collect(std::move(outcomes), lines);
  contents.stats.held_out = selection.held_out;
  contents.stats.repeated = selection.repeated;
  contents.stats.repeats = selection.repeats;
  if (contents.stats.used == 0) {
    const SkippedRow& first = contents.stats.skipped_rows.front();
    throw UserError(fmt::format("{}: none of its {} rows can be used; {} {}: {}", options.Name(),
                                contents.stats.rows, place, first.line, first.reason));
  }
  WriteCacheFile(file, key, contents);
  return {.file = file, .dataset = Dataset::Open(file, key), .from_cache = false, .place = place};
}

}  // namespace sft::engine
