#include "common/grade/match.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/grade/words.h"

namespace sft::grade {
namespace {

constexpr int64_t kPatternMemory = int64_t{8} << 20;

bool IsAsciiPunctuation(char32_t c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

bool IsArticle(std::u32string_view word) { return word == U"a" || word == U"an" || word == U"the"; }

bool IsDigitAt(std::string_view text, size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}

// The number that begins at a digit, or at a point before one; moves `at` behind it.
double NumberAt(std::string_view text, size_t& at) {
  const bool negative = at > 0 && text[at - 1] == '-' && !IsDigitAt(text, at - 2);
  std::string digits;
  const auto take = [&] { digits += text[at++]; };
  while (IsDigitAt(text, at) || (at < text.size() && text[at] == ',' && IsDigitAt(text, at + 1))) {
    text[at] == ',' ? static_cast<void>(++at) : take();
  }
  if (at < text.size() && text[at] == '.' && IsDigitAt(text, at + 1)) {
    take();
    while (IsDigitAt(text, at)) take();
  }
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    const bool sign = at + 1 < text.size() && (text[at + 1] == '-' || text[at + 1] == '+');
    if (IsDigitAt(text, at + 1 + (sign ? 1 : 0))) {
      take();
      if (sign) take();
      while (IsDigitAt(text, at)) take();
    }
  }
  double value = 0;
  // Too large a number stays what it was: infinite ones are equal to none.
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc()) {
    return NAN;
  }
  return negative ? -value : value;
}

std::string_view WithoutFence(std::string_view text) {
  text = Strip(text);
  constexpr std::string_view kFence = "```";
  if (!text.starts_with(kFence) || !text.ends_with(kFence)) return text;
  const size_t line = text.find('\n');
  if (line == text.npos || line + 1 > text.size() - kFence.size()) return text;
  return Strip(text.substr(line + 1, text.size() - kFence.size() - line - 1));
}

}  // namespace

bool ExactMatch(std::string_view answer, std::string_view reference) {
  return Strip(answer) == Strip(reference);
}

std::u32string Normalized(std::string_view text) {
  std::u32string lower = Lower(Characters(text));
  std::erase_if(lower, IsAsciiPunctuation);
  std::u32string without, word;
  for (const char32_t c : lower + U" ") {
    if (IsWordCharacter(c)) {
      word += c;
      continue;
    }
    without += IsArticle(word) ? U" " : word;
    without += c;
    word.clear();
  }
  std::u32string joined;
  for (const std::u32string& each : SplitAtSpace(without)) {
    if (!joined.empty()) joined += U' ';
    joined += each;
  }
  return joined;
}

double WordF1(std::string_view answer, std::string_view reference) {
  const auto of_answer = SplitAtSpace(Normalized(answer));
  const auto of_reference = SplitAtSpace(Normalized(reference));
  if (of_answer.empty() || of_reference.empty()) return of_answer == of_reference ? 1 : 0;
  std::map<std::u32string, int> left;
  for (const std::u32string& word : of_reference) ++left[word];
  double same = 0;
  for (const std::u32string& word : of_answer) {
    const auto found = left.find(word);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++same;
  }
  if (same == 0) return 0;
  const double precision = same / static_cast<double>(of_answer.size());
  const double recall = same / static_cast<double>(of_reference.size());
  return 2 * precision * recall / (precision + recall);
}

absl::StatusOr<double> NumberIn(std::string_view text) {
  constexpr std::string_view kMark = "####";
  const size_t mark = text.rfind(kMark);
  const bool first = mark != text.npos;
  if (first) text.remove_prefix(mark + kMark.size());
  absl::StatusOr<double> found = NotFound("no number");
  for (size_t at = 0; at < text.size();) {
    const bool point = text[at] == '.' && IsDigitAt(text, at + 1);
    if (!point && !IsDigitAt(text, at)) {
      ++at;
      continue;
    }
    found = NumberAt(text, at);
    if (first) break;
  }
  return found;
}

absl::StatusOr<bool> SameNumber(std::string_view answer, std::string_view reference) {
  const absl::StatusOr<double> wanted = NumberIn(reference);
  if (!wanted.ok()) return FailedPrecondition("the reference holds no number");
  const absl::StatusOr<double> given = NumberIn(answer);
  if (!given.ok()) return false;
  return std::abs(*given - *wanted) <= 1e-6 * std::max(std::abs(*given), std::abs(*wanted));
}

bool IsJson(std::string_view answer) { return !ParseJson(WithoutFence(answer)).is_discarded(); }

absl::StatusOr<bool> SameJson(std::string_view answer, std::string_view reference) {
  const nlohmann::json wanted = ParseJson(WithoutFence(reference));
  if (wanted.is_discarded()) return FailedPrecondition("the reference is no JSON");
  const nlohmann::json given = ParseJson(WithoutFence(answer));
  return !given.is_discarded() && given == wanted;
}

Pattern::Pattern(std::unique_ptr<re2::RE2> expression) : expression_(std::move(expression)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

absl::StatusOr<Pattern> Pattern::Make(const std::string& expression) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kPatternMemory);
  auto made = std::make_unique<re2::RE2>(expression, options);
  if (!made->ok()) {
    return InvalidArgument(
        fmt::format("{} (RE2's syntax: no look-around, no references to groups)", made->error()));
  }
  if (made->NumberOfCapturingGroups() > 1) {
    return InvalidArgument(
        "it has several groups; one at most may be compared with the reference: write (?:...) for "
        "the others");
  }
  return Pattern(std::move(made));
}

bool Pattern::Passes(std::string_view answer, std::string_view reference) const {
  re2::StringPiece rest(answer.data(), answer.size());
  if (expression_->NumberOfCapturingGroups() == 0) {
    return re2::RE2::PartialMatch(rest, *expression_);
  }
  re2::StringPiece groups[2];
  if (!expression_->Match(rest, 0, answer.size(), re2::RE2::UNANCHORED, groups, 2)) return false;
  // A group that took no part in the match holds nothing.
  const std::string_view found =
      groups[1].data() == nullptr ? "" : std::string_view(groups[1].data(), groups[1].size());
  return Strip(found) == Strip(reference);
}

bool Pattern::has_group() const { return expression_->NumberOfCapturingGroups() > 0; }

std::optional<std::string> Pattern::Last(std::string_view text) const {
  const re2::StringPiece whole(text.data(), text.size());
  std::optional<std::string> last;
  re2::StringPiece groups[2];
  for (size_t at = 0; at <= text.size();) {
    if (!expression_->Match(whole, at, text.size(), re2::RE2::UNANCHORED, groups, 2)) break;
    last.emplace(groups[1].data() == nullptr ? "" : groups[1].data(), groups[1].size());
    const size_t end = static_cast<size_t>(groups[0].data() - text.data()) + groups[0].size();
    at = groups[0].empty() ? end + 1 : end;
  }
  return last;
}

}  // namespace sft::grade
