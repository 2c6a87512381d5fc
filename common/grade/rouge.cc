#include "common/grade/rouge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/grade/words.h"

namespace sft::grade {
namespace {

using Words = std::vector<std::string>;

Words RougeWords(std::string_view text) {
  Words words;
  std::string word;
  for (const char32_t c : Lower(Characters(text))) {
    if ((c >= U'a' && c <= U'z') || (c >= U'0' && c <= U'9')) {
      word += static_cast<char>(c);
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

RougeScore ScoreOf(double matches, size_t of_answer, size_t of_reference) {
  RougeScore score;
  score.precision = matches / static_cast<double>(std::max<size_t>(of_answer, 1));
  score.recall = matches / static_cast<double>(std::max<size_t>(of_reference, 1));
  const double sum = score.precision + score.recall;
  if (sum > 0) score.f1 = 2 * score.precision * score.recall / sum;
  return score;
}

std::map<std::string, int64_t> RunsOf(const Words& words, size_t n) {
  std::map<std::string, int64_t> runs;
  for (size_t i = 0; i + n <= words.size(); ++i) {
    std::string run;
    for (size_t k = 0; k < n; ++k) run += words[i + k] + ' ';
    ++runs[run];
  }
  return runs;
}

// Words as numbers, equal for equal words.
class Numbers {
 public:
  std::vector<int32_t> Of(const Words& words) {
    std::vector<int32_t> ids;
    ids.reserve(words.size());
    for (const std::string& word : words) {
      ids.push_back(ids_.emplace(word, static_cast<int32_t>(ids_.size())).first->second);
    }
    return ids;
  }
  size_t size() const { return ids_.size(); }

 private:
  std::unordered_map<std::string, int32_t> ids_;
};

using Ids = std::vector<int32_t>;

int64_t LengthOfLongest(const Ids& reference, const Ids& answer) {
  std::vector<int32_t> row(answer.size() + 1, 0);
  for (const int32_t word : reference) {
    int32_t diagonal = 0;
    for (size_t j = 1; j < row.size(); ++j) {
      const int32_t above = row[j];
      row[j] = word == answer[j - 1] ? diagonal + 1 : std::max(above, row[j - 1]);
      diagonal = above;
    }
  }
  return row.back();
}

// Marks the places of `reference` that one of the longest subsequences takes: the one that going
// back finds when it prefers to leave a word of the reference.
void MarkLongest(const Ids& reference, const Ids& answer, std::vector<bool>& marks) {
  const size_t columns = answer.size();
  std::vector<bool> goes_left(reference.size() * columns);
  std::vector<int32_t> row(columns + 1, 0);
  for (size_t i = 0; i < reference.size(); ++i) {
    int32_t diagonal = 0;
    for (size_t j = 1; j <= columns; ++j) {
      const int32_t above = row[j], left = row[j - 1];
      row[j] = reference[i] == answer[j - 1] ? diagonal + 1 : std::max(above, left);
      goes_left[i * columns + j - 1] = left > above;
      diagonal = above;
    }
  }
  size_t i = reference.size(), j = columns;
  while (i > 0 && j > 0) {
    if (reference[i - 1] == answer[j - 1]) {
      marks[--i] = true;
      --j;
    } else if (goes_left[(i - 1) * columns + j - 1]) {
      --j;
    } else {
      --i;
    }
  }
}

absl::Status CheckLength(size_t answer, size_t reference) {
  if (std::max(answer, reference) <= kMostRougeWords) return absl::OkStatus();
  return absl::OutOfRangeError(fmt::format("the {} has {} words, and ROUGE-L is for {} at most",
                                           answer > reference ? "answer" : "reference",
                                           std::max(answer, reference), kMostRougeWords));
}

std::vector<Ids> LinesOf(std::string_view text, Numbers& numbers, size_t& words) {
  std::vector<Ids> lines;
  words = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(numbers.Of(RougeWords(text.substr(0, end))));
    words += lines.back().size();
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return lines;
}

std::vector<int64_t> CountsOf(const std::vector<Ids>& lines, size_t ids) {
  std::vector<int64_t> counts(ids, 0);
  for (const Ids& line : lines) {
    for (const int32_t id : line) ++counts[static_cast<size_t>(id)];
  }
  return counts;
}

}  // namespace

RougeScore RougeN(std::string_view answer, std::string_view reference, int n) {
  const Words of_answer = RougeWords(answer), of_reference = RougeWords(reference);
  const auto width = static_cast<size_t>(n);
  const auto runs = RunsOf(of_answer, width), wanted = RunsOf(of_reference, width);
  int64_t matches = 0;
  for (const auto& [run, count] : wanted) {
    const auto found = runs.find(run);
    if (found != runs.end()) matches += std::min(count, found->second);
  }
  const auto total = [&](const Words& words) {
    return words.size() < width ? 0 : words.size() - width + 1;
  };
  return ScoreOf(static_cast<double>(matches), total(of_answer), total(of_reference));
}

absl::StatusOr<RougeScore> RougeL(std::string_view answer, std::string_view reference) {
  Numbers numbers;
  const Ids of_answer = numbers.Of(RougeWords(answer));
  const Ids of_reference = numbers.Of(RougeWords(reference));
  SFT_RETURN_IF_ERROR(CheckLength(of_answer.size(), of_reference.size()));
  if (of_answer.empty() || of_reference.empty()) return RougeScore();
  return ScoreOf(static_cast<double>(LengthOfLongest(of_reference, of_answer)), of_answer.size(),
                 of_reference.size());
}

absl::StatusOr<RougeScore> RougeLsum(std::string_view answer, std::string_view reference) {
  Numbers numbers;
  size_t answer_words = 0, reference_words = 0;
  const std::vector<Ids> of_answer = LinesOf(answer, numbers, answer_words);
  const std::vector<Ids> of_reference = LinesOf(reference, numbers, reference_words);
  SFT_RETURN_IF_ERROR(CheckLength(answer_words, reference_words));
  if (answer_words == 0 || reference_words == 0) return RougeScore();
  std::vector<int64_t> answer_left = CountsOf(of_answer, numbers.size());
  std::vector<int64_t> reference_left = CountsOf(of_reference, numbers.size());
  int64_t hits = 0;
  for (const Ids& line : of_reference) {
    std::vector<bool> marks(line.size());
    for (const Ids& other : of_answer) MarkLongest(line, other, marks);
    for (size_t i = 0; i < line.size(); ++i) {
      const auto id = static_cast<size_t>(line[i]);
      if (!marks[i] || answer_left[id] == 0 || reference_left[id] == 0) continue;
      ++hits;
      --answer_left[id];
      --reference_left[id];
    }
  }
  return ScoreOf(static_cast<double>(hits), answer_words, reference_words);
}

}  // namespace sft::grade
