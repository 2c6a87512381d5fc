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
#include "common/data/dataset_check.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/cache_file.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/encode_row.h"
#include "worker/engine/data/files.h"
#include "worker/engine/data/row.h"
#include "worker/engine/data/runaway.h"

namespace sft::engine {
namespace {

// Part of the cache's key: raised whenever equal input would give other tokens or another mask.
constexpr int kEncodingVersion = 1;
// Rows a thread takes at once.
constexpr size_t kBlockRows = 64;

struct Line {
  int64_t number = 0;  // from 1
  std::string_view text;
};

// The lines that hold something, at most `max` of them (0: all). A byte order mark is not content.
std::vector<Line> SplitLines(std::string_view bytes, int64_t max) {
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
  std::vector<Line> lines;
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view text = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (max > 0 && static_cast<int64_t>(lines.size()) == max) break;
    lines.push_back({number, text});
  }
  return lines;
}

struct Outcome {
  EncodedRow row;
  std::optional<SkippedRow> skipped;
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
      outcome.row = encoder_.Encode(ParseRow(line.text));
      if (outcome.row.tokens.size() > static_cast<size_t>(options_.sequence_length)) {
        throw RowError(RowProblem::kTooLong,
                       fmt::format("{} tokens, sequence_length is {}", outcome.row.tokens.size(),
                                   options_.sequence_length));
      }
    } catch (const RowError& error) {
      outcome.row = {};
      outcome.skipped = SkippedRow{line.number, error.problem(), error.what()};
    }
    return outcome;
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

// Throws when rows have problems that the job does not skip; lists the first of them by line.
void RefuseRows(const std::vector<Outcome>& outcomes, const PrepareOptions& options) {
  int64_t refused = 0;
  bool only_long = true;
  std::string list;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.skipped) continue;
    const bool too_long = outcome.skipped->problem == RowProblem::kTooLong;
    if ((too_long ? options.on_long_rows : options.on_bad_rows) == spec::BadRows::kSkip) continue;
    only_long = only_long && too_long;
    if (++refused <= DatasetStats::kReportedRows) {
      list += fmt::format("\n  line {}: {}", outcome.skipped->line, outcome.skipped->reason);
    }
  }
  if (refused == 0) return;
  if (refused > DatasetStats::kReportedRows) {
    list += fmt::format("\n  and {} more", refused - DatasetStats::kReportedRows);
  }
  const std::string key = only_long ? "data.on_long_rows" : "data.on_bad_rows";
  throw UserError(fmt::format("{}: {} of {} rows cannot be used:{}", options.Name(), refused,
                              outcomes.size(), list),
                  "bad_rows",
                  fmt::format("correct these rows, or leave them out with {} = \"skip\"{}", key,
                              only_long ? ", or raise hyperparameters.sequence_length" : ""));
}

CacheContents Collect(std::vector<Outcome> outcomes, const std::vector<Line>& lines) {
  CacheContents contents;
  contents.stats.rows = static_cast<int64_t>(outcomes.size());
  size_t tokens = 0;
  for (const Outcome& outcome : outcomes) tokens += outcome.row.tokens.size();
  contents.tokens.reserve(tokens);  // to grow by doubling would take three times as much
  contents.loss.reserve(tokens);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    Outcome outcome = std::move(outcomes[i]);
    if (!outcome.skipped) {
      contents.Add(outcome.row.tokens, outcome.row.loss, lines[i].number);
      continue;
    }
    ++contents.stats.skipped[static_cast<size_t>(outcome.skipped->problem)];
    if (contents.stats.skipped_rows.size() < DatasetStats::kReportedRows) {
      contents.stats.skipped_rows.push_back(*std::move(outcome.skipped));
    }
  }
  return contents;
}

std::string CacheKey(const ChatTokenizer& tokenizer, const PrepareOptions& options,
                     std::string_view data) {
  return io::Sha256Hex(fmt::format(
      "{} {} {} {} {} {} {} {}", kEncodingVersion, io::Sha256Hex(data), tokenizer.digest(),
      options.sequence_length, options.max_examples, static_cast<int>(options.loss_on),
      static_cast<int>(options.on_bad_rows), static_cast<int>(options.on_long_rows)));
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

PrepareOptions FromSpec(const spec::JobSpec& spec, std::filesystem::path data,
                        std::filesystem::path cache_dir) {
  PrepareOptions options;
  options.data = std::move(data);
  options.cache_dir = std::move(cache_dir);
  options.sequence_length = spec.hyperparameters.sequence_length;
  options.loss_on = spec.data.loss_on;
  options.on_bad_rows = spec.data.on_bad_rows;
  options.on_long_rows = spec.data.on_long_rows;
  return options;
}

}  // namespace

PrepareOptions PrepareOptions::ForTraining(const spec::JobSpec& spec, std::filesystem::path data,
                                           std::filesystem::path cache_dir) {
  PrepareOptions options = FromSpec(spec, std::move(data), std::move(cache_dir));
  options.max_examples = spec.data.max_examples;
  return options;
}

PrepareOptions PrepareOptions::ForValidation(const spec::JobSpec& spec, std::filesystem::path data,
                                             std::filesystem::path cache_dir) {
  return FromSpec(spec, std::move(data), std::move(cache_dir));
}

PreparedDataset PrepareDataset(const ChatTokenizer& tokenizer, const PrepareOptions& options) {
  const MappedFile data = MappedFile::Open(options.data, options.stamp);
  const std::string key = CacheKey(tokenizer, options, data.bytes());
  const std::filesystem::path file = options.cache_dir / (key + ".rows");
  if (std::shared_ptr<const Dataset> cached = OpenCached(file, key)) {
    // sft-worker removes what was not used for long: the time of change is that of the last use.
    // Where it cannot be set, the file is made anew some day.
    (void)utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
    return {.file = file, .dataset = std::move(cached), .from_cache = true};
  }
  const std::vector<Line> lines = SplitLines(data.bytes(), options.max_examples);
  if (lines.empty()) {
    throw UserError(fmt::format("{}: the file has no rows; write one JSON object on each line",
                                options.Name()));
  }
  RowWatch watch(options.row_limit);
  std::optional<RowEncoder> encoder;
  {
    const RowWatch::Thread watched(watch);  // it tries the template
    encoder.emplace(tokenizer, options.loss_on, options.sequence_length);
  }
  std::vector<Outcome> outcomes =
      ParallelEncoder(*encoder, options, lines, static_cast<int64_t>(data.bytes().size()), watch)
          .Run();
  RefuseRows(outcomes, options);
  const CacheContents contents = Collect(std::move(outcomes), lines);
  if (contents.stats.used == 0) {
    const SkippedRow& first = contents.stats.skipped_rows.front();
    throw UserError(fmt::format("{}: none of its {} rows can be used; line {}: {}", options.Name(),
                                contents.stats.rows, first.line, first.reason));
  }
  WriteCacheFile(file, key, contents);
  return {.file = file, .dataset = Dataset::Open(file, key), .from_cache = false};
}

}  // namespace sft::engine
