#include "common/spec/mixture.h"

#include <fmt/format.h>

#include <charconv>

namespace sft::spec {
namespace {

constexpr std::string_view kWeight = "weight=", kMostRows = "max_examples=";
constexpr double kMostWeight = 1000;

template <typename T>
bool ParseAll(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

}  // namespace

absl::StatusOr<TrainPart> ParseTrainPart(std::string_view text) {
  TrainPart part;
  for (;;) {
    const size_t space = text.rfind(' ');
    if (space == text.npos) break;
    const std::string_view word = text.substr(space + 1);
    if (word.starts_with(kWeight)) {
      const bool read = ParseAll(word.substr(kWeight.size()), part.weight);
      if (!read || !(part.weight > 0) || part.weight > kMostWeight) {
        return InvalidArgument(fmt::format(
            "\"{}\": weight is how often each row is seen in an epoch, above 0 and at most {}",
            word, kMostWeight));
      }
    } else if (word.starts_with(kMostRows)) {
      if (!ParseAll(word.substr(kMostRows.size()), part.max_examples) || part.max_examples < 1) {
        return InvalidArgument(
            fmt::format("\"{}\": max_examples is a number of rows, at least 1", word));
      }
    } else {
      break;
    }
    text.remove_suffix(text.size() - space);
  }
  part.path = text;
  if (part.path.empty()) return InvalidArgument("a file without a path");
  return part;
}

absl::StatusOr<std::vector<TrainPart>> TrainParts(const JobSpec& spec) {
  if (spec.data.mixture.empty()) {
    return std::vector<TrainPart>{{spec.job.data, 1, spec.data.max_examples}};
  }
  std::vector<TrainPart> parts;
  for (const std::string& item : spec.data.mixture) {
    SFT_ASSIGN_OR_RETURN(TrainPart part, ParseTrainPart(item));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string PartKey(size_t part) {
  return part == 0 ? "job.data" : fmt::format("data.mixture[{}]", part);
}

size_t PartOfKey(std::string_view key) {
  constexpr std::string_view kBegin = "data.mixture[";
  if (key == "job.data") return 0;
  size_t part = 0;
  const bool is_part = key.starts_with(kBegin) && key.ends_with(']') &&
                       ParseAll(key.substr(kBegin.size(), key.size() - kBegin.size() - 1), part);
  return is_part ? part : std::string_view::npos;
}

}  // namespace sft::spec
