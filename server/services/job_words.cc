#include "server/services/job_words.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>

#include "common/base/utf8.h"
#include "sft/v1/job.pb.h"

namespace sft::server {
namespace {

using store::JobFilter;

constexpr size_t kMostFilterBytes = 500;
constexpr size_t kMostWords = 8;
constexpr size_t kMostTold = 80;
constexpr char kKeys[] = "state=, kind=, owner=, project=, group=, sweep=";

// A word as it is written: without its quotes, and split at its first sign outside of them.
struct Word {
  std::string text;
  size_t sign = std::string::npos;
};

bool IsSpace(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }

// The first word of a text, which is taken off it. One that is still in quotes at the end ends
// there.
Word TakeWord(std::string_view& text) {
  Word word;
  bool quoted = false;
  size_t at = 0;
  for (; at < text.size() && (quoted || !IsSpace(text[at])); ++at) {
    const char c = text[at];
    if (c == '"') {
      quoted = !quoted;
      continue;
    }
    if (!quoted && word.sign == std::string::npos && (c == '=' || c == ':')) {
      word.sign = word.text.size();
    }
    word.text += c;
  }
  text.remove_prefix(at);
  return word;
}

std::string Shown(std::string_view text) { return WithoutHidden(text.substr(0, kMostTold)); }

// Values of an enum, but for its first, which says nothing: "RUNNING, FAILED".
std::string NamesOf(const google::protobuf::EnumDescriptor& type) {
  std::string names;
  for (int i = 1; i < type.value_count(); ++i) {
    names += (names.empty() ? "" : ", ") + type.value(i)->name();
  }
  return names;
}

// "running,failed" into numbers.
template <typename Number>
absl::Status AddNumbers(const std::string& key, const std::string& value,
                        const google::protobuf::EnumDescriptor& type, std::vector<Number>& into) {
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(absl::AsciiStrToUpper(value), ','))) {
    const auto* const found = type.FindValueByName(name);
    if (found == nullptr || found->number() == 0) {
      return InvalidArgument(fmt::format("filter: there is no {} \"{}\"; there are {}", key,
                                         Shown(value), NamesOf(type)));
    }
    into.push_back(static_cast<Number>(found->number()));
  }
  return absl::OkStatus();
}

absl::Status SetOnce(const std::string& key, const std::string& value, std::string& into) {
  if (value.empty()) return InvalidArgument(fmt::format("filter: {}= has no value", key));
  if (!into.empty() && into != value) {
    return InvalidArgument(
        fmt::format("filter: {}={} and \"{}\": no job has both", key, Shown(value), Shown(into)));
  }
  into = value;
  return absl::OkStatus();
}

absl::Status AddWord(const Word& word, JobFilter& filter) {
  const std::string key = word.text.substr(0, word.sign);
  if (word.sign != std::string::npos) {
    const std::string value = word.text.substr(word.sign + 1);
    if (key == "state") {
      return AddNumbers(key, value, *v1::Job::State_descriptor(), filter.states_among);
    }
    if (key == "kind") {
      return AddNumbers(key, value, *v1::Job::Kind_descriptor(), filter.kinds_among);
    }
    if (key == "owner") return SetOnce(key, value, filter.owner);
    if (key == "project") return SetOnce(key, value, filter.project);
    if (key == "group") return SetOnce(key, value, filter.group);
    if (key == "sweep") return SetOnce(key, value, filter.sweep);
    if (word.text[word.sign] == '=') {
      return InvalidArgument(fmt::format(
          "filter: there is no {}=; there are {}, and a text with = stands in quotes: \"{}\"",
          Shown(key), kKeys, Shown(word.text)));
    }
  }
  if (filter.words.size() == kMostWords) {
    return InvalidArgument(
        fmt::format("filter: at most {} words of text are looked for; in quotes "
                    "several are one",
                    kMostWords));
  }
  filter.words.push_back(word.text);
  return absl::OkStatus();
}

}  // namespace

absl::Status AddWords(std::string_view text, JobFilter& filter) {
  if (text.size() > kMostFilterBytes) {
    return InvalidArgument(
        fmt::format("filter: has {} bytes; at most {} are taken", text.size(), kMostFilterBytes));
  }
  while (true) {
    while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
    if (text.empty()) return absl::OkStatus();
    const Word word = TakeWord(text);
    if (!word.text.empty()) SFT_RETURN_IF_ERROR(AddWord(word, filter));
  }
}

}  // namespace sft::server
