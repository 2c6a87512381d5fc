#include "common/grade/ngrams.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "common/grade/words.h"

namespace sft::grade {
namespace {

void ReplaceAll(std::string_view from, std::string_view to, std::string& text) {
  size_t at = 0;
  while ((at = text.find(from, at)) != text.npos) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsStop(char c) { return c == '.' || c == ','; }
// ASCII punctuation and symbols but for '()' neighbours that words hold: "'", ",", "-" and ".".
bool StandsAlone(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
         (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

std::string SetApart(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (!StandsAlone(c)) {
      out += c;
      continue;
    }
    out += ' ';
    out += c;
    out += ' ';
  }
  return out;
}

// Replaces each pair of neighbours that `matches` by what `write` makes of it; a pair's second
// never begins another.
template <typename Matches, typename Write>
std::string ReplacePairs(const std::string& text, Matches matches, Write write) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i + 1 < text.size() && matches(text[i], text[i + 1])) {
      write(text[i], text[i + 1], out);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

// The second of a pair by itself. The first may be the last byte of a longer character.
void SecondApart(char a, char b, std::string& out) {
  out += a;
  out += ' ';
  out += b;
  out += ' ';
}

// Runs of words or characters as one text each, with how often they come.
using Counts = std::unordered_map<std::string, int64_t>;

Counts RunsOfWords(const std::vector<std::string>& words, size_t n) {
  Counts counts;
  for (size_t i = 0; i + n <= words.size(); ++i) {
    std::string run;
    for (size_t k = 0; k < n; ++k) run += words[i + k] + '\n';
    ++counts[run];
  }
  return counts;
}

std::unordered_map<std::u32string, int64_t> RunsOfCharacters(std::u32string_view text, size_t n) {
  std::unordered_map<std::u32string, int64_t> counts;
  for (size_t i = 0; i + n <= text.size(); ++i) ++counts[std::u32string(text.substr(i, n))];
  return counts;
}

template <typename Map>
int64_t MatchesOf(const Map& answer, const Map& reference) {
  int64_t matches = 0;
  for (const auto& [run, count] : answer) {
    const auto found = reference.find(run);
    if (found != reference.end()) matches += std::min(count, found->second);
  }
  return matches;
}

double RunsIn(size_t length, size_t n) {
  return length < n ? 0 : static_cast<double>(length - n + 1);
}

std::u32string WithoutSpace(std::string_view text) {
  std::u32string characters = Characters(text);
  std::erase_if(characters, IsSpace);
  return characters;
}

}  // namespace

std::vector<std::string> Words13a(std::string_view line) {
  std::u32string characters = Characters(line);
  while (!characters.empty() && IsSpace(characters.back())) characters.pop_back();
  std::string text = Utf8Of(characters);
  ReplaceAll("<skipped>", "", text);
  ReplaceAll("-\n", "", text);
  ReplaceAll("\n", " ", text);
  ReplaceAll("&quot;", "\"", text);
  ReplaceAll("&amp;", "&", text);
  ReplaceAll("&lt;", "<", text);
  ReplaceAll("&gt;", ">", text);
  text = SetApart(" " + text + " ");
  text = ReplacePairs(
      text, [](char a, char b) { return !IsDigit(a) && IsStop(b); }, SecondApart);
  text = ReplacePairs(
      text, [](char a, char b) { return IsStop(a) && !IsDigit(b); },
      [](char a, char b, std::string& out) {
        out += ' ';
        out += a;
        out += ' ';
        out += b;
      });
  text = ReplacePairs(
      text, [](char a, char b) { return IsDigit(a) && b == '-'; }, SecondApart);
  std::vector<std::string> words;
  for (const std::u32string& word : SplitAtSpace(Characters(text))) words.push_back(Utf8Of(word));
  return words;
}

BleuCounts CountBleu(std::string_view answer, std::string_view reference) {
  const std::vector<std::string> of_answer = Words13a(answer), of_reference = Words13a(reference);
  BleuCounts counts{};
  counts[0] = static_cast<double>(of_answer.size());
  counts[1] = static_cast<double>(of_reference.size());
  for (size_t n = 1; n <= kBleuOrder; ++n) {
    counts[1 + n] =
        static_cast<double>(MatchesOf(RunsOfWords(of_answer, n), RunsOfWords(of_reference, n)));
    counts[1 + kBleuOrder + n] = RunsIn(of_answer.size(), n);
  }
  return counts;
}

double BleuScore(std::span<const double> counts) {
  const std::span<const double> matches = counts.subspan(2, kBleuOrder);
  const std::span<const double> totals = counts.subspan(2 + kBleuOrder, kBleuOrder);
  const double answer = counts[0], reference = counts[1];
  if (std::all_of(matches.begin(), matches.end(), [](double count) { return count == 0; })) {
    return 0;
  }
  double logs = 0, smoothing = 1;
  for (size_t n = 0; n < kBleuOrder; ++n) {
    if (totals[n] == 0) return 0;  // no answer is so long: its precision is 0
    if (matches[n] == 0) smoothing *= 2;
    logs +=
        std::log(matches[n] == 0 ? 100 / (smoothing * totals[n]) : 100 * matches[n] / totals[n]);
  }
  const double brevity = answer < reference ? std::exp(1 - reference / answer) : 1;
  return brevity * std::exp(logs / static_cast<double>(kBleuOrder));
}

ChrfCounts CountChrf(std::string_view answer, std::string_view reference) {
  const std::u32string of_answer = WithoutSpace(answer), of_reference = WithoutSpace(reference);
  ChrfCounts counts{};
  for (size_t n = 1; n <= kChrfOrder; ++n) {
    double* place = counts.data() + 3 * (n - 1);
    place[1] = RunsIn(of_reference.size(), n);
    // A length that the reference does not have is not held against the answer.
    if (place[1] == 0) continue;
    place[0] = RunsIn(of_answer.size(), n);
    place[2] = static_cast<double>(
        MatchesOf(RunsOfCharacters(of_answer, n), RunsOfCharacters(of_reference, n)));
  }
  return counts;
}

double ChrfScore(std::span<const double> counts) {
  constexpr double kFactor = 4;  // recall counts twice as much: beta 2, squared
  double precision = 0, recall = 0;
  int orders = 0;
  for (size_t n = 0; n < kChrfOrder; ++n) {
    const double answer = counts[3 * n], reference = counts[3 * n + 1], matches = counts[3 * n + 2];
    if (answer == 0 || reference == 0) continue;
    precision += matches / answer;
    recall += matches / reference;
    ++orders;
  }
  if (orders == 0 || precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kFactor) * precision * recall / (kFactor * precision + recall);
}

}  // namespace sft::grade
