#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>

#include "common/base/ids.h"
#include "common/base/thread_time.h"
#include "common/data/byte_reader.h"
#include "common/data/row_reader.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/cache_file.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/encode_row.h"
#include "worker/engine/data/files.h"
#include "worker/engine/data/long_rows.h"
#include "worker/engine/data/row.h"
#include "worker/engine/data/runaway.h"

namespace sft::engine {
namespace {

// Part of the cache's key: raised whenever equal input would give other tokens or another mask.
constexpr int kEncodingVersion = 2;
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
  std::vector<EncodedRow> documents;
  std::optional<SkippedRow> skipped;
  std::optional<data::Form> form;  // nothing: the row is not JSON
  bool cut = false;
  int64_t tokens = 0, loss_tokens = 0;  // of a row that was cut, before it was
};

// A part of the row reader's contract: the container of a file that is mapped as it is.
bool IsPlainLines(const PrepareOptions& options, std::string_view bytes) {
  const std::string_view head = bytes.substr(0, 1 << 20);
  return data::CompressionOf(head) == data::Compression::kNone &&
         data::ContainerOf(options.Name(), head) == data::Container::kLines;
}

// The rows of a data file, each as JSON text. Those of JSON Lines are read where they are; what
// stands otherwise is unpacked to a file without a name in the cache's folder, since rows need not
// fit into memory.
class RowSource {
 public:
  RowSource(const MappedFile& file, const PrepareOptions& options) {
    if (IsPlainLines(options, file.bytes())) {
      bytes_ = file.bytes();
      lines_ = SplitLines(bytes_, options.max_examples);
    } else {
      Unpack(options);
    }
    if (lines_.empty()) {
      throw UserError(fmt::format("{}: the file has no rows; write one JSON object on each line",
                                  options.Name()));
    }
  }

  std::string_view bytes() const { return bytes_; }
  const std::vector<Line>& lines() const { return lines_; }

 private:
  void Unpack(const PrepareOptions& options) {
    struct Place {
      int64_t line;
      size_t begin, size;
    };
    std::vector<Place> places;
    ThrowIfNodeError(io::MakeDirs(options.cache_dir.string()));
    const std::filesystem::path path = options.cache_dir / (RandomId("unpacked") + ".tmp");
    io::UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid()) ThrowIfNodeError(ErrnoStatus(path.string(), errno));
    size_t size = 0;
    std::string pending;
    absl::Status written;
    const auto flush = [&] {
      written = io::WriteAll(fd.get(), pending, path.string());
      pending.clear();
      return written;
    };
    const data::TakeRow take = [&](int64_t line, std::string_view row) -> absl::StatusOr<bool> {
      places.push_back({line, size, row.size()});
      pending += row;
      size += row.size();
      if (pending.size() > kFlushBytes) SFT_RETURN_IF_ERROR(flush());
      return options.max_examples == 0 ||
             static_cast<int64_t>(places.size()) < options.max_examples;
    };
    absl::Status read =
        data::ReadRows(options.data.string(), options.Name(), {.names = &options.names}, take);
    if (read.ok()) read = flush();
    if (read.ok()) unpacked_.emplace(MappedFile::Open(path));
    unlink(path.c_str());
    ThrowIfNodeError(written);
    ThrowIfError(Annotate(read, options.Name()));
    bytes_ = unpacked_->bytes();
    lines_.reserve(places.size());
    for (const Place& place : places) {
      lines_.push_back({place.line, bytes_.substr(place.begin, place.size)});
    }
  }

  static constexpr size_t kFlushBytes = 1 << 20;
  std::optional<MappedFile> unpacked_;
  std::string_view bytes_;
  std::vector<Line> lines_;
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
      data::Form form = data::Form::kUnknown;
      const Row row = [&] {
        try {
          return ParseRow(line.text, options_.names, &form);
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
        outcome.tokens = static_cast<int64_t>(encoded.tokens.size());
        outcome.loss_tokens = encoded.LossTokens();
        outcome.documents = FitLongRow(
            encoder_, row, std::move(encoded),
            {options_.on_long_rows, options_.sequence_length,
             std::min(options_.split_overlap, std::max(options_.sequence_length / 2, 1))});
        outcome.cut = true;
      }
      for (EncodedRow& document : outcome.documents) document.breaks = {};
    } catch (const RowError& error) {
      outcome.documents.clear();
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

bool Refuses(spec::LongRows rule) {
  return rule == spec::LongRows::kError || rule == spec::LongRows::kSkip;
}

// Throws when rows have problems that the job does not skip; lists the first of them by line.
void RefuseRows(const std::vector<Outcome>& outcomes, const PrepareOptions& options) {
  int64_t refused = 0;
  bool only_long = true;
  std::string list;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.skipped) continue;
    const bool too_long = outcome.skipped->problem == RowProblem::kTooLong;
    // A long row that the job's rule can make nothing of is a bad one.
    const bool by_length = too_long && Refuses(options.on_long_rows);
    if (by_length ? options.on_long_rows == spec::LongRows::kSkip
                  : options.on_bad_rows == spec::BadRows::kSkip) {
      continue;
    }
    only_long = only_long && by_length;
    if (++refused <= DatasetStats::kReportedRows) {
      list += fmt::format("\n  line {}: {}", outcome.skipped->line, outcome.skipped->reason);
    }
  }
  if (refused == 0) return;
  if (refused > DatasetStats::kReportedRows) {
    list += fmt::format("\n  and {} more", refused - DatasetStats::kReportedRows);
  }
  const std::string key = only_long ? "data.on_long_rows" : "data.on_bad_rows";
  throw UserError(
      fmt::format("{}: {} of {} rows cannot be used:{}", options.Name(), refused, outcomes.size(),
                  list),
      "bad_rows",
      fmt::format("correct these rows, or leave them out with {} = \"skip\"{}", key,
                  only_long ? ", cut them (data.on_long_rows = \"truncate_right\", "
                              "\"split\", ...), or raise hyperparameters.sequence_length"
                            : ""));
}

// Counts the tokens of a cut or split row that are in none of its documents.
void CountCut(const Outcome& outcome, const LongRowRule& rule, DatasetStats& stats) {
  int64_t tokens = 0, loss = 0;
  for (const EncodedRow& document : outcome.documents) {
    tokens += static_cast<int64_t>(document.tokens.size());
    loss += document.LossTokens();
  }
  ++stats.cut;
  stats.cut_loss_tokens += outcome.loss_tokens - loss;
  // Pieces share tokens, or repeat what stands before a conversation: none is lost.
  if (rule.rule != spec::LongRows::kSplit) stats.cut_tokens += outcome.tokens - tokens;
}

CacheContents Collect(std::vector<Outcome> outcomes, const std::vector<Line>& lines,
                      const PrepareOptions& options) {
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
      if (outcome.cut) CountCut(outcome, {.rule = options.on_long_rows}, contents.stats);
      for (const EncodedRow& document : outcome.documents) {
        contents.Add(document.tokens, document.loss, lines[i].number);
      }
      continue;
    }
    ++contents.stats.skipped[static_cast<size_t>(outcome.skipped->problem)];
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
  options.names = data::NamesOf(spec.data.columns, spec.data.roles);
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
  const MappedFile file_bytes = MappedFile::Open(options.data, options.stamp);
  const std::string key = CacheKey(tokenizer, options, file_bytes.bytes());
  const std::filesystem::path file = options.cache_dir / (key + ".rows");
  if (std::shared_ptr<const Dataset> cached = OpenCached(file, key)) {
    // sft-worker removes what was not used for long: the time of change is that of the last use.
    // Where it cannot be set, the file is made anew some day.
    (void)utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
    return {.file = file, .dataset = std::move(cached), .from_cache = true};
  }
  const RowSource source(file_bytes, options);
  const std::vector<Line>& lines = source.lines();
  RowWatch watch(options.row_limit);
  std::optional<RowEncoder> encoder;
  {
    const RowWatch::Thread watched(watch);  // it tries the template
    encoder.emplace(tokenizer, options.loss_on,
                    Refuses(options.on_long_rows) ? options.sequence_length : 0);
  }
  std::vector<Outcome> outcomes =
      ParallelEncoder(*encoder, options, lines, static_cast<int64_t>(source.bytes().size()), watch)
          .Run();
  RefuseRows(outcomes, options);
  const CacheContents contents = Collect(std::move(outcomes), lines, options);
  if (contents.stats.used == 0) {
    const SkippedRow& first = contents.stats.skipped_rows.front();
    throw UserError(fmt::format("{}: none of its {} rows can be used; line {}: {}", options.Name(),
                                contents.stats.rows, first.line, first.reason));
  }
  WriteCacheFile(file, key, contents);
  return {.file = file, .dataset = Dataset::Open(file, key), .from_cache = false};
}

}  // namespace sft::engine
