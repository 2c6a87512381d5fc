#include "worker/rank/answer_part.h"

#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

constexpr int64_t kRowsToSync = 64;
constexpr size_t kChunk = size_t{1} << 20;

// Calls `use` with the file's bytes from `offset` on, in pieces.
template <typename Use>
absl::Status ForEachPiece(const std::string& path, const Use& use, int64_t offset = 0) {
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  std::string piece(kChunk, '\0');
  while (true) {
    SFT_ASSIGN_OR_RETURN(const size_t size,
                         io::ReadAt(fd.get(), offset, piece.data(), piece.size(), path));
    if (size == 0) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(use(std::string_view(piece.data(), size)));
    offset += static_cast<int64_t>(size);
  }
}

std::string PartPath(const std::string& out, int rank, int ranks) {
  return fmt::format("{}.parts/part-{:05}-of-{:05}.jsonl", out, rank, ranks);
}

struct WholeLines {
  int64_t lines = 0, bytes = 0;
};

absl::StatusOr<WholeLines> CountLines(const std::string& path) {
  WholeLines whole;
  int64_t read = 0;
  SFT_RETURN_IF_ERROR(ForEachPiece(path, [&](std::string_view piece) {
    whole.lines += std::count(piece.begin(), piece.end(), '\n');
    const size_t last = piece.rfind('\n');
    if (last != std::string_view::npos) whole.bytes = read + static_cast<int64_t>(last) + 1;
    read += static_cast<int64_t>(piece.size());
    return absl::OkStatus();
  }));
  return whole;
}

}  // namespace

std::string AnswerPart::Difference(const std::string& was_text, const std::string& is_text) {
  const nlohmann::ordered_json was = ParseOrderedJson(was_text), is = ParseOrderedJson(is_text);
  std::string text;
  if (!was.is_object() || !is.is_object()) return "its note cannot be read";
  for (const auto& item : is.items()) {
    if (was.contains(item.key()) && was[item.key()] == item.value()) continue;
    // Hashes say nothing to people.
    const bool hash = item.key() == "prompts" || item.key() == "model" || item.key() == "adapter";
    text += text.empty() ? "" : ", ";
    text += hash || !was.contains(item.key())
                ? fmt::format("{} differs", item.key())
                : fmt::format("{} is {}, was {}", item.key(), DumpJson(item.value()),
                              DumpJson(was[item.key()]));
  }
  return text.empty() ? "it was made by another version" : text;
}

std::string AnswerPart::PathOf(int rank) const { return PartPath(out_, rank, share_.ranks); }

absl::StatusOr<AnswerPart> AnswerPart::Open(const std::string& out, const RowShare& share,
                                            const std::string& run) {
  AnswerPart part(out, share);
  const std::string note = part.Folder() + "/run";
  std::string of_parts;
  if (io::Exists(note)) {
    SFT_ASSIGN_OR_RETURN(of_parts, io::ReadFile(note));
    if (of_parts != run) {
      return AlreadyExists(
          fmt::format("{} holds answers of another run ({}): remove it, or give another --out",
                      part.Folder(), Difference(of_parts, run)));
    }
  }
  if (io::Exists(out)) {
    if (of_parts == run) {  // all of this run was joined
      part.answered_ = share.size();
      return part;
    }
    return AlreadyExists(
        fmt::format("{} is there already: move it away, or give another --out", out));
  }
  SFT_RETURN_IF_ERROR(io::MakeDirs(part.Folder()));
  if (of_parts.empty()) SFT_RETURN_IF_ERROR(io::WriteFileAtomic(note, run));
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(part.PathOf(share.rank)));
  SFT_ASSIGN_OR_RETURN(part.lock_, io::OpenForRead(file.path()));
  if (flock(part.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Unavailable(
        fmt::format("another process writes {}: wait until it has ended", file.path()));
  }
  SFT_ASSIGN_OR_RETURN(const WholeLines whole, CountLines(file.path()));
  if (whole.lines > share.size()) {
    return DataLoss(fmt::format("{} holds {} lines, but this process has {} rows: remove {}",
                                file.path(), whole.lines, share.size(), part.Folder()));
  }
  SFT_RETURN_IF_ERROR(file.Truncate(whole.bytes));
  part.answered_ = whole.lines;
  part.file_.emplace(std::move(file));
  return part;
}

absl::Status AnswerPart::Append(std::string_view line) {
  SFT_RETURN_IF_ERROR(file_->Append(std::string(line) + "\n"));
  ++answered_;
  return answered_ % kRowsToSync == 0 ? file_->Sync() : absl::OkStatus();
}

absl::Status AnswerPart::ForEachLine(int64_t first,
                                     const std::function<void(std::string_view)>& use) const {
  std::string rest;  // a line that has begun
  int64_t number = joined() ? -share_.begin() : 0;
  return ForEachPiece(joined() ? out_ : PathOf(share_.rank), [&](std::string_view piece) {
    rest += piece;
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (number >= first && number < share_.size()) {
        use(std::string_view(rest).substr(begin, end - begin));
      }
      ++number;
    }
    rest.erase(0, begin);
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> AnswerPart::AllAnswered() const {
  for (int rank = 0; rank < share_.ranks; ++rank) {
    if (!io::Exists(PathOf(rank))) return false;
    SFT_ASSIGN_OR_RETURN(const WholeLines whole, CountLines(PathOf(rank)));
    const int64_t rows = RowShare{rank, share_.ranks, share_.rows}.size();
    if (whole.lines > rows) {
      return DataLoss(fmt::format("{} holds {} lines for {} rows: remove {}", PathOf(rank),
                                  whole.lines, rows, Folder()));
    }
    if (whole.lines < rows) return false;
  }
  return true;
}

absl::Status AnswerPart::Join() const {
  const std::string joined = fmt::format("{}/joined-{}", Folder(), share_.rank);
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(joined));
  SFT_RETURN_IF_ERROR(file.Truncate(0));
  for (int rank = 0; rank < share_.ranks; ++rank) {
    SFT_RETURN_IF_ERROR(
        ForEachPiece(PathOf(rank), [&](std::string_view piece) { return file.Append(piece); }));
  }
  SFT_RETURN_IF_ERROR(file.Sync());
  SFT_RETURN_IF_ERROR(io::RenameDurably(joined, out_));
  // The note stays: it tells a process that starts again that its work is done.
  for (int rank = 0; rank < share_.ranks; ++rank) {
    SFT_RETURN_IF_ERROR(io::RemoveAll(PathOf(rank)));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AnswerPart::Finish() {
  if (!file_) return true;
  SFT_RETURN_IF_ERROR(file_->Sync());
  absl::StatusOr<bool> all = AllAnswered();
  if (all.ok() && *all) {
    const absl::Status status = Join();
    if (!status.ok()) all = status;
  }
  // Of two that finish at once one may find the other's parts removed: the file is there then.
  if ((!all.ok() || !*all) && io::Exists(out_)) return true;
  return all;
}

absl::Status AnswerCount::Read(const std::string& path, int64_t first, Part& part) {
  std::string rest;  // a line that has begun
  const absl::Status read = ForEachPiece(
      path,
      [&](std::string_view piece) {
        rest += piece;
        size_t begin = 0;
        for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
          const nlohmann::json line = ParseJson(std::string_view(rest).substr(begin, end - begin));
          if (line.is_object()) {
            part.sums.tokens += line.value("answer_tokens", int64_t{0});
            if (line.contains("error") && part.sums.errors++ == 0) {
              part.sums.first_error = first + part.sums.answers;
            }
          }
          ++part.sums.answers;
        }
        part.offset += static_cast<int64_t>(begin);
        rest.erase(0, begin);
        return absl::OkStatus();
      },
      part.offset);
  return absl::IsNotFound(read) ? absl::OkStatus() : read;
}

absl::StatusOr<AnswerCount::Sums> AnswerCount::Look() {
  const bool joined = io::Exists(out_);
  Sums sums;
  if (joined) {
    Part whole;
    SFT_RETURN_IF_ERROR(Read(out_, 0, whole));
    return whole.sums;
  }
  for (int rank = 0; rank < share_.ranks; ++rank) {
    Part& part = parts_[static_cast<size_t>(rank)];
    const RowShare own{rank, share_.ranks, share_.rows};
    SFT_RETURN_IF_ERROR(Read(PartPath(out_, rank, share_.ranks), own.begin(), part));
    sums.answers += part.sums.answers;
    sums.tokens += part.sums.tokens;
    sums.errors += part.sums.errors;
    if (sums.first_error < 0) sums.first_error = part.sums.first_error;
  }
  return sums;
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(to));
  SFT_RETURN_IF_ERROR(file.Truncate(0));
  SFT_RETURN_IF_ERROR(
      ForEachPiece(from, [&](std::string_view piece) { return file.Append(piece); }));
  return file.Sync();
}

void ThrowIfError(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(Message(status));
  if (absl::IsAlreadyExists(status)) throw engine::UserError(message, "output_exists");
  throw engine::InfrastructureError(message);
}

}  // namespace sft::rank
