#include "worker/rank/answer_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

// Most bytes of lines in one key.
constexpr size_t kPiece = size_t{1} << 20;
constexpr const char *kShared = "shared", *kAll = "all";

[[noreturn]] void Unreachable(const std::exception& error) {
  std::string what = error.what();
  what.resize(std::min(what.find('\n'), what.size()));  // LibTorch goes on with a backtrace
  throw engine::InfrastructureError(
      fmt::format("the other nodes' ranks cannot be reached any more: {}", what),
      "collective_failed", "Look for a rank that ended first: its log says why.");
}

void Put(c10d::Store& store, const std::string& key, const std::string& value) {
  try {
    store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
  } catch (const std::exception& error) {
    Unreachable(error);
  }
}

bool Has(c10d::Store& store, const std::string& key) {
  try {
    return store.check({key});
  } catch (const std::exception& error) {
    Unreachable(error);
  }
}

// Of a key that nobody else takes: what is gone between the two questions would be waited for.
std::optional<std::string> Look(c10d::Store& store, const std::string& key) {
  if (!Has(store, key)) return std::nullopt;
  try {
    const std::vector<uint8_t> value = store.get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    Unreachable(error);
  }
}

std::optional<std::string> Take(c10d::Store& store, const std::string& key) {
  auto value = Look(store, key);
  try {
    if (value) store.deleteKey(key);
  } catch (const std::exception& error) {
    Unreachable(error);
  }
  return value;
}

std::string KeyOf(const char* what, int rank) { return fmt::format("{}/{}", what, rank); }
std::string KeyOf(const char* what, int rank, int64_t piece) {
  return fmt::format("{}/{}/{}", what, rank, piece);
}

int64_t NumberOf(const std::string& text) {
  int64_t number = -1;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, number).ptr != end || number < 0) {
    throw engine::InternalError(fmt::format("\"{}\" is no number of answers", text));
  }
  return number;
}

void AppendLines(std::string_view lines, AnswerPart& part) {
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    if (end == lines.npos) throw engine::InternalError("a piece of answers ends within a line");
    ThrowIfError(part.Append(lines.substr(0, end)));
    lines.remove_prefix(end + 1);
  }
}

// Puts the part's lines from `first` on under keys numbered from `piece`; returns the next number.
int64_t PutLines(c10d::Store& store, const char* what, int rank, const AnswerPart& part,
                 int64_t first, int64_t piece) {
  std::string lines;
  const auto put = [&] {
    if (!lines.empty()) Put(store, KeyOf(what, rank, piece++), lines);
    lines.clear();
  };
  ThrowIfError(part.ForEachLine(first, [&](std::string_view line) {
    lines.append(line).push_back('\n');
    if (lines.size() >= kPiece) put();
  }));
  put();
  return piece;
}

}  // namespace

AnswerReceiver::AnswerReceiver(c10d::Store& store, std::string out, const RowShare& own,
                               int local_ranks, std::string run, const std::string& token)
    : store_(store),
      out_(std::move(out)),
      own_(own),
      local_ranks_(local_ranks),
      run_(std::move(run)) {
  for (int rank = local_ranks_; rank < own_.ranks; ++rank) others_[rank];
  ThrowIfError(io::WriteFileAtomic(AnswerPart::MarkOf(out_), token));
  Put(store_, "place", DumpJson(nlohmann::json{{"run", run_}, {"token", token}}));
}

void AnswerReceiver::Welcome(int rank, const std::string& hello) {
  Other& other = others_.at(rank);
  other.met = true;
  if (hello == kShared) return;
  auto part = AnswerPart::Open(out_, {rank, own_.ranks, own_.rows}, run_);
  ThrowIfError(part.status());
  other.part.emplace(*std::move(part));
  if (other.part->joined()) {
    Put(store_, KeyOf("have", rank), kAll);
    return;
  }
  const int64_t theirs = NumberOf(hello);
  Put(store_, KeyOf("have", rank), std::to_string(other.part->answered()));
  if (other.part->answered() > theirs) PutLines(store_, "give", rank, *other.part, theirs, 0);
}

bool AnswerReceiver::Meet() {
  bool all = true;
  for (auto& [rank, other] : others_) {
    if (other.met) continue;
    const auto hello = Take(store_, KeyOf("hello", rank));
    if (hello) Welcome(rank, *hello);
    all = all && other.met;
  }
  return all;
}

bool AnswerReceiver::Receive() {
  bool all = true;
  for (auto& [rank, other] : others_) {
    if (!other.part || other.part->joined()) continue;
    const int64_t rows = RowShare{rank, own_.ranks, own_.rows}.size();
    // Looked at before the last of its lines are taken: they came before it.
    const bool left = other.part->answered() < rows && Has(store_, KeyOf("bye", rank));
    while (const auto lines = Take(store_, KeyOf("send", rank, other.next))) {
      ++other.next;
      AppendLines(*lines, *other.part);
    }
    if (left && other.part->answered() < rows) {
      throw engine::InfrastructureError(fmt::format(
          "rank {} has ended, and of its {} answers {} came", rank, rows, other.part->answered()));
    }
    if (other.part->answered() > rows) {
      throw engine::InternalError(fmt::format("rank {} sent {} answers to its {} rows", rank,
                                              other.part->answered(), rows));
    }
    all = all && other.part->answered() == rows;
  }
  return all;
}

bool AnswerReceiver::AllLeft() {
  for (int rank = 1; rank < own_.ranks; ++rank) {
    if (!Has(store_, KeyOf("bye", rank))) return false;
  }
  return true;
}

void SayGoodbye(c10d::Store& store, int rank) {
  try {
    store.set(KeyOf("bye", rank), std::vector<uint8_t>{1});
  } catch (const std::exception&) {
    // Rank 0 waits for it no longer than a while.
  }
}

void AnswerSender::TakeGiven(AnswerPart& part) {
  while (part.answered() < *have_) {
    const auto lines = Take(store_, KeyOf("give", share_.rank, taken_));
    if (!lines) return;
    ++taken_;
    AppendLines(*lines, part);
  }
}

bool AnswerSender::Meet(AnswerPart& part) {
  if (!said_) {
    const auto text = Look(store_, "place");
    if (!text) return false;
    const nlohmann::json place = ParseJson(*text);
    if (place.at("run").get<std::string>() != run_) {
      throw engine::UserError(
          fmt::format("this node would answer otherwise than rank 0's: {}",
                      AnswerPart::Difference(place.at("run").get<std::string>(), run_)),
          "nodes_differ", "give all nodes of the job the same model, adapter and data");
    }
    const absl::StatusOr<std::string> mark = io::ReadFile(AnswerPart::MarkOf(out_));
    shared_ = mark.ok() && *mark == place.at("token").get<std::string>();
    Put(store_, KeyOf("hello", share_.rank), shared_ ? kShared : std::to_string(part.answered()));
    said_ = true;
  }
  if (shared_) return true;
  if (!have_) {
    const auto text = Take(store_, KeyOf("have", share_.rank));
    if (!text) return false;
    all_joined_ = *text == kAll;
    if (all_joined_) return true;
    have_ = NumberOf(*text);
    if (*have_ < part.answered()) {
      sent_ = PutLines(store_, "send", share_.rank, part, *have_, 0);
    }
  }
  if (all_joined_) return true;
  TakeGiven(part);
  return part.answered() >= *have_;
}

void AnswerSender::Add(std::string_view line) {
  if (shared_) return;
  unsent_.append(line).push_back('\n');
  if (unsent_.size() >= kPiece) Send();
}

void AnswerSender::Send() {
  if (unsent_.empty()) return;
  Put(store_, KeyOf("send", share_.rank, sent_++), unsent_);
  unsent_.clear();
}

bool AnswerSender::AllTaken() {
  return sent_ == 0 || !Has(store_, KeyOf("send", share_.rank, sent_ - 1));
}

}  // namespace sft::rank
