#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::rank {

// Which rows of a file of prompts one of several processes answers: an equal run of them, in order.
struct RowShare {
  int rank = 0, ranks = 1;
  int64_t rows = 0;  // of the whole file

  int64_t begin() const { return rows * rank / ranks; }
  int64_t end() const { return rows * (rank + 1) / ranks; }
  int64_t size() const { return end() - begin(); }
};

// The answers of one process on their way into a file that several make together, a line each in
// the order of the prompts. Until all are there they lie in the folder OUT.parts, a file for each
// process; whoever finishes last joins them. Processes share nothing else, may be killed at any
// time, and then go on behind the last whole line. Not thread-safe.
class AnswerPart {
 public:
  // `run` names what is asked, of whom and how, as a JSON object; ALREADY_EXISTS where `out` or its
  // parts belong to another run, with what differs.
  static absl::StatusOr<AnswerPart> Open(const std::string& out, const RowShare& share,
                                         const std::string& run);

  // Rows of this share that have their answers.
  int64_t answered() const { return answered_; }
  // All parts are one file already.
  bool joined() const { return !file_.has_value(); }

  // The part's lines from number `first` on, without their newlines, also after it was joined.
  absl::Status ForEachLine(int64_t first,
                           const std::function<void(std::string_view line)>& use) const;

  // A file beside the parts of `out`, by which processes see whether they have the same folder.
  static std::string MarkOf(const std::string& out) { return out + ".parts/place"; }
  // What differs between two runs, for people: "seed is 4, was 3".
  static std::string Difference(const std::string& was, const std::string& is);

  // The answer of the next row, without a newline. Durable every few rows.
  absl::Status Append(std::string_view line);
  // When all rows are answered: makes them durable and, if no other process has any left, joins the
  // parts into `out`. True if that is there now.
  absl::StatusOr<bool> Finish();
  // Makes the answers so far durable.
  absl::Status Sync() { return file_ ? file_->Sync() : absl::OkStatus(); }

 private:
  AnswerPart(std::string out, const RowShare& share) : out_(std::move(out)), share_(share) {}

  std::string Folder() const { return out_ + ".parts"; }
  std::string PathOf(int rank) const;
  absl::StatusOr<bool> AllAnswered() const;
  absl::Status Join() const;

  std::string out_;
  RowShare share_;
  int64_t answered_ = 0;
  std::optional<io::AppendFile> file_;  // none: all is joined
  io::UniqueFd lock_;                   // on the part, while this process writes it
};

// Counts the answers of all processes while they come, reading only what is new.
class AnswerCount {
 public:
  AnswerCount(std::string out, const RowShare& share)
      : out_(std::move(out)), share_(share), parts_(static_cast<size_t>(share.ranks)) {}

  struct Sums {
    int64_t answers = 0, tokens = 0, errors = 0;  // errors: answers that have one
    int64_t first_error = -1;                     // number of the first of them
  };
  absl::StatusOr<Sums> Look();

 private:
  struct Part {
    int64_t offset = 0;  // behind the last whole line that was read
    Sums sums;
  };
  absl::Status Read(const std::string& path, int64_t first, Part& part);

  std::string out_;
  RowShare share_;
  std::vector<Part> parts_;
};

// Copies a file durably.
absl::Status CopyFile(const std::string& from, const std::string& to);

// Throws a status of the above as an engine error: a full disk is the machine's fault, a file that
// is in the way the user's.
void ThrowIfError(const absl::Status& status);

}  // namespace sft::rank
