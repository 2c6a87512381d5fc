#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/data/row_form.h"
#include "common/spec/hold_out.h"
#include "common/spec/job_spec.h"

namespace sft::engine {

class ChatTokenizer;
struct CacheView;

// Why a row cannot be used. Values are stored in the cache: append only.
enum class RowProblem : uint8_t {
  kNotJson = 0,       // the line is not a JSON object
  kBadForm = 1,       // none of the forms, or a field of the wrong type
  kNoAnswer = 2,      // no assistant turn or completion, or none that carries loss
  kControlToken = 3,  // content spells a control token of the model
  kTemplate = 4,      // the chat template refuses it, or its turns cannot be told apart
  kTooLong = 5,       // more tokens than sequence_length, or a line that is too long to be read
  kSameAnswers = 6,   // a preference pair of two equal answers; always left out
};
inline constexpr int kRowProblems = 7;
// "not JSON", "too long", ... as shown in messages.
const char* RowProblemName(RowProblem problem);

// A row that was left out.
struct SkippedRow {
  int64_t line = 0;  // from 1
  RowProblem problem = RowProblem::kNotJson;
  std::string reason;  // what is wrong, in words
};

// Counts of the used and skipped rows of a data file.
struct DatasetStats {
  int64_t rows = 0;       // rows read: not blank, within max_examples
  int64_t used = 0;       // rows that became documents
  int64_t documents = 0;  // more than rows where long ones were split
  int64_t tokens = 0;     // of documents; what pieces share counts in each
  int64_t loss_tokens = 0;
  int64_t longest = 0;                   // tokens of the longest document
  data::FormCounts forms = {};           // rows read, by form; those that are not JSON in none
  int64_t cut = 0;                       // rows that were cut or split (data.on_long_rows)
  int64_t cut_tokens = 0;                // their tokens that are in no document
  int64_t cut_loss_tokens = 0;           // of those with loss
  int64_t held_out = 0;                  // rows of the other side of data.val_split; not in rows
  int64_t repeated = 0;                  // rows that repeat an earlier one; not in rows
  std::vector<int64_t> repeats;          // the lines of the first of them
  int64_t skipped[kRowProblems] = {};    // counts by RowProblem
  int64_t skipped_tokens = 0;            // of rows that were left out as too long
  int64_t skipped_loss_tokens = 0;       // of these with loss
  std::vector<SkippedRow> skipped_rows;  // the first kReportedRows, by line

  static constexpr int kReportedRows = 20;
  int64_t skipped_total() const;
};

// Options of preparing a data file: what to tokenise, and how to treat rows that cannot be used.
struct PrepareOptions {
  std::filesystem::path data;       // the file with the rows (common/data/row_reader.h)
  std::string name;                 // what the submitter calls it; empty: `data`. Its ending says
                                    // how rows stand in it
  std::string stamp;                // it has to look so (MappedFile::Open); empty: as it is
  std::filesystem::path cache_dir;  // made when missing; files are named by content
  int sequence_length = 2048;
  int64_t max_examples = 0;  // 0: all
  spec::LossOn loss_on = spec::LossOn::kAssistant;
  spec::BadRows on_bad_rows = spec::BadRows::kError;
  spec::LongRows on_long_rows = spec::LongRows::kError;
  int split_overlap = 64;
  spec::TextDocuments text_documents = spec::TextDocuments::kWhole;
  data::Learns learns = data::Learns::kTexts;
  spec::HoldOut hold_out;      // a part of the rows that is left to the other side
  bool held_out_side = false;  // the rows of that part alone
  uint64_t seed = 42;          // which rows they are
  std::string group_by;        // data.group_by
  spec::Dedup dedup = spec::Dedup::kOff;
  bool one_of_several = false;          // other files may have the rows that this one lacks
  std::vector<PrepareOptions> earlier;  // files whose rows come before these, for dedup
  data::RowNames names;
  int threads = 0;  // 0: the machine's
  // Processor time of one row; a row that takes more ends the process (runaway.h).
  Nanos row_limit = std::chrono::minutes(5);
  std::string Name() const { return name.empty() ? data.string() : name; }
  // Called from the calling thread as rows are done.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress;

  // The job's options for its training rows (max_examples applies) or its validation rows; those of
  // a job with data.val_split are in the same file. `part`: which of several files it is.
  static PrepareOptions ForTraining(const spec::JobSpec& spec, std::filesystem::path data,
                                    std::filesystem::path cache_dir, size_t part = 0);
  static PrepareOptions ForValidation(const spec::JobSpec& spec, std::filesystem::path data,
                                      std::filesystem::path cache_dir, size_t part = 0);
};

// Bits of Document::loss.
enum LossMark : uint8_t {
  kPredicted = 1,     // the token is to be predicted
  kBesideAnswer = 2,  // of a preference row: not part of the answer that is compared
  kOfBadAnswer = 4,   // of a preference row: of a rejected answer
};

// One tokenised row. `loss[i]` is not 0 when token i is to be predicted; loss[0] is always 0. A
// preference pair is two documents, the chosen answer first.
struct Document {
  std::span<const int32_t> tokens;
  std::span<const uint8_t> loss;
  int64_t line = 0;
};

// A prepared data set, read by mmap from the cache. Immutable; any thread may read.
class Dataset {
 public:
  // Opens a file made by PrepareDataset and checks all of it. Throws UserError when it is missing
  // and InternalError when it is not whole, or not made for `key` (empty: any).
  static std::shared_ptr<const Dataset> Open(const std::filesystem::path& file,
                                             std::string_view key = {});
  // For Open and FromDocuments alone: Token cannot be made elsewhere.
  class Token;
  explicit Dataset(const Token&);
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  // Several data sets as one, one behind the other. Of a data set with weight w each document is
  // seen w times an epoch (StepPlan).
  struct Part {
    std::shared_ptr<const Dataset> rows;
    double weight = 1;
    int64_t begin = 0;  // of its documents in the whole; set by Join
  };
  static std::shared_ptr<const Dataset> Join(std::vector<Part> parts);
  // What Join was given; empty for a data set of one file.
  const std::vector<Part>& parts() const { return parts_; }

  int64_t size() const {
    if (parts_.empty()) return static_cast<int64_t>(lines_.size());
    return parts_.back().begin + parts_.back().rows->size();
  }
  Document Get(int64_t index) const;
  int64_t Length(int64_t index) const;
  int64_t LossTokens(int64_t index) const;
  const DatasetStats& stats() const { return stats_; }

  // A data set of documents in memory, for tests and tools.
  static std::shared_ptr<const Dataset> FromDocuments(
      const std::vector<std::vector<int32_t>>& tokens,
      const std::vector<std::vector<uint8_t>>& loss);

 private:
  void Adopt(const CacheView& view);
  const Part& PartOf(int64_t index) const;
  class Storage;
  std::unique_ptr<Storage> storage_;
  std::span<const uint64_t> offsets_;  // size() + 1 positions in tokens_
  std::span<const uint64_t> lines_;
  std::span<const uint32_t> loss_counts_;
  std::span<const int32_t> tokens_;
  std::span<const uint8_t> loss_;
  DatasetStats stats_;
  std::vector<Part> parts_;
};

// A data set and where it is kept.
struct PreparedDataset {
  std::filesystem::path file;              // in cache_dir
  std::shared_ptr<const Dataset> dataset;  // shared by the step plans that read it
  bool from_cache = false;
  std::string_view place = "line";  // what the numbers of rows count: lines, or rows of a table
};

// Tokenises `options.data`, or finds the result in the cache: the key is the content of the data
// file, the tokenizer, the template and every option that changes the result. A cache file that is
// not whole is made anew. Written to a temporary name, synced, then renamed, so that no half file
// is ever seen. Throws UserError when the file is missing or holds no usable row, when rows are
// refused (up to 20 listed by line); InfrastructureError when the disk is full.
PreparedDataset PrepareDataset(const ChatTokenizer& tokenizer, const PrepareOptions& options);

}  // namespace sft::engine
