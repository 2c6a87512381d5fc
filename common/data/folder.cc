#include "common/data/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/data/front_matter.h"
#include "common/io/file.h"

namespace sft::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMostFiles = 100'000;
constexpr std::string_view kEndings[] = {".jsonl",   ".ndjson", ".json",    ".csv", ".tsv",
                                         ".parquet", ".arrow",  ".feather", ".txt", ".md"};
constexpr std::string_view kPackedEndings[] = {".gz", ".zst", ".bz2", ".xz"};
// What a folder holds beside rows.
constexpr std::string_view kNoData[] = {"README.md",  "dataset_info.json", "dataset_infos.json",
                                        "state.json", "dataset_dict.json", "dataset_card.md"};
const std::map<std::string, std::vector<std::string_view>>& SplitWords() {
  static const std::map<std::string, std::vector<std::string_view>> words = {
      {"train", {"train", "training"}},
      {"validation", {"validation", "valid", "dev", "val"}},
      {"test", {"test", "testing", "eval", "evaluation"}}};
  return words;
}

std::string LowerText(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return lower;
}

bool IsDataFile(const fs::path& relative) {
  for (const fs::path& part : relative) {
    if (part.native().starts_with('.') || part.native().starts_with("__")) return false;
  }
  const std::string name = relative.filename().string();
  if (std::ranges::find(kNoData, name) != std::end(kNoData)) return false;
  std::string lower = LowerText(name);
  for (const std::string_view ending : kPackedEndings) {
    if (lower.ends_with(ending)) {
      lower.resize(lower.size() - ending.size());
      break;
    }
  }
  return std::ranges::any_of(kEndings,
                             [&](std::string_view ending) { return lower.ends_with(ending); });
}

// The data files below the folder, relative to it, sorted.
absl::StatusOr<std::vector<std::string>> AllFiles(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const fs::path relative = at->path().lexically_relative(folder);
    if (at->is_directory(error) && at->path().filename().native().starts_with('.')) {
      at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file(error) || !IsDataFile(relative)) continue;
    files.push_back(relative.string());
    if (files.size() > kMostFiles) {
      return InvalidArgument(fmt::format("{} has more than {} files", folder.string(), kMostFiles));
    }
  }
  if (error) return ErrnoStatus(folder.string(), error.value());
  // Where there are rows, texts are notes about them.
  const auto is_text = [](const std::string& file) {
    const std::string lower = LowerText(file);
    return lower.ends_with(".md") || lower.ends_with(".txt");
  };
  if (!std::ranges::all_of(files, is_text)) std::erase_if(files, is_text);
  std::ranges::sort(files);
  return files;
}

// Shell patterns: '*' and '?' do not match '/', "**" does.
bool Matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.starts_with("**")) {
    const std::string_view rest = pattern.substr(pattern.starts_with("**/") ? 3 : 2);
    for (size_t i = 0; i <= text.size(); ++i) {
      if (Matches(rest, text.substr(i))) return true;
    }
    return false;
  }
  if (pattern[0] == '*') {
    for (size_t i = 0; i <= text.size(); ++i) {
      if (Matches(pattern.substr(1), text.substr(i))) return true;
      if (i < text.size() && text[i] == '/') return false;
    }
    return false;
  }
  if (text.empty()) return false;
  if (pattern[0] == '[') {
    const size_t end = pattern.find(']', 2);
    if (end != pattern.npos) {
      bool found = false;
      for (size_t i = 1; i < end; ++i) {
        const bool range = i + 2 < end && pattern[i + 1] == '-';
        found = found || (range ? text[0] >= pattern[i] && text[0] <= pattern[i + 2]
                                : text[0] == pattern[i]);
        if (range) i += 2;
      }
      return found && Matches(pattern.substr(end + 1), text.substr(1));
    }
  }
  if (pattern[0] != text[0] && !(pattern[0] == '?' && text[0] != '/')) return false;
  return Matches(pattern.substr(1), text.substr(1));
}

// The split that a word of the text names; empty: none. Words stand between separators or digits.
std::string SplitOf(std::string_view text) {
  const std::string lower = LowerText(text);
  for (size_t begin = 0; begin < lower.size();) {
    const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
    size_t end = begin;
    while (end < lower.size() && is_letter(lower[end])) ++end;
    for (const auto& [split, words] : SplitWords()) {
      if (std::ranges::find(words, std::string_view(lower).substr(begin, end - begin)) !=
          words.end()) {
        return split;
      }
    }
    begin = end + 1;
  }
  return "";
}

// Another name of a split: "dev" is "validation".
std::string SplitNamed(const std::string& asked) {
  for (const auto& [split, words] : SplitWords()) {
    if (std::ranges::find(words, std::string_view(asked)) != words.end()) return split;
  }
  return asked;
}

using Splits = std::map<std::string, std::vector<std::string>>;

Splits SplitsByName(const std::vector<std::string>& files) {
  for (const bool by_file : {true, false}) {
    Splits splits;
    for (const std::string& file : files) {
      const fs::path path(file);
      const std::string split =
          SplitOf(by_file ? path.filename().string() : path.parent_path().string());
      if (!split.empty()) splits[split].push_back(file);
    }
    if (!splits.empty()) return splits;
  }
  return {{"train", files}};
}

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> PatternsOf(const Json& value) {
  std::vector<std::string> patterns;
  if (value.is_string()) patterns.push_back(value.get<std::string>());
  for (const Json& item : value.is_array() ? value : Json::array()) {
    if (item.is_string()) patterns.push_back(item.get<std::string>());
  }
  return patterns;
}

std::vector<std::string> Matching(const std::vector<std::string>& files,
                                  const std::vector<std::string>& patterns,
                                  const std::string& dir) {
  std::vector<std::string> found;
  for (std::string pattern : patterns) {
    if (pattern.starts_with("./")) pattern.erase(0, 2);
    if (!dir.empty()) pattern = dir + "/" + pattern;
    for (const std::string& file : files) {
      const bool new_one = std::ranges::find(found, file) == found.end();
      if (new_one && Matches(pattern, file)) found.push_back(file);
    }
  }
  return found;
}

Splits SplitsOfConfig(const Json& config, const std::vector<std::string>& files) {
  std::string dir = TextOf(config, "data_dir");
  while (dir.ends_with('/')) dir.pop_back();
  const auto named = config.find("data_files");
  if (named == config.end()) {
    return SplitsByName(dir.empty() ? files : Matching(files, {"**"}, dir));
  }
  Splits splits;
  const bool by_split = named->is_array() && !named->empty() && named->front().is_object();
  if (!by_split) {
    splits["train"] = Matching(files, PatternsOf(*named), dir);
    return splits;
  }
  for (const Json& part : *named) {
    if (!part.is_object() || !part.contains("path")) continue;
    const std::string split = TextOf(part, "split");
    splits[split.empty() ? "train" : split] = Matching(files, PatternsOf(part["path"]), dir);
  }
  return splits;
}

// The config that is meant, of those that the README.md lists.
absl::StatusOr<Json> ChooseConfig(const Json& configs, const FolderName& folder) {
  std::vector<std::string> names;
  for (const Json& config : configs) {
    if (!config.is_object()) continue;
    const std::string name = TextOf(config, "config_name");
    names.push_back(name.empty() ? "default" : name);
    const bool is_default = TextOf(config, "default") == "true" || names.back() == "default";
    if (folder.config.empty() ? is_default || configs.size() == 1 : names.back() == folder.config) {
      return config;
    }
  }
  return InvalidArgument(fmt::format(
      "{} has the configs {}{}; name one, as {}#{}", folder.path, fmt::join(names, ", "),
      folder.config.empty() ? ", and none is the default" : fmt::format(", not {}", folder.config),
      folder.path, names.empty() ? "CONFIG" : names.front()));
}

absl::StatusOr<Json> ReadJsonFile(const fs::path& path) {
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(path.string(), 64 << 20));
  Json json = ParseOrderedJson(text);
  if (!json.is_object()) return InvalidArgument(fmt::format("{} is no JSON object", path.string()));
  return json;
}

// What save_to_disk wrote: the files of state.json, in its order.
absl::StatusOr<FolderFiles> SavedFiles(const fs::path& folder) {
  SFT_ASSIGN_OR_RETURN(const Json state, ReadJsonFile(folder / "state.json"));
  FolderFiles files;
  const auto named = state.find("_data_files");
  for (const Json& file : named != state.end() ? *named : Json::array()) {
    const std::string name = file.is_object() ? TextOf(file, "filename") : "";
    if (name.empty() || name.find('/') != name.npos) {
      return InvalidArgument(fmt::format("{}/state.json names no files", folder.string()));
    }
    files.paths.push_back((folder / name).string());
  }
  files.chosen = "saved by datasets";
  return files;
}

absl::StatusOr<std::string> ChooseSplit(const std::vector<std::string>& names,
                                        const FolderName& folder) {
  const auto has = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (folder.split.empty() && has("train")) return "train";
  if (folder.split.empty() && names.size() == 1) return names.front();
  if (has(folder.split)) return folder.split;
  if (!folder.split.empty() && has(SplitNamed(folder.split))) return SplitNamed(folder.split);
  return InvalidArgument(
      fmt::format("{} has the splits {}{}; name one, as {}#{}:{}", folder.path,
                  fmt::join(names, ", "), folder.split.empty() ? "" : ", not " + folder.split,
                  folder.path, folder.config, names.empty() ? "SPLIT" : names.front()));
}

}  // namespace

FolderName ParseFolderName(std::string_view text) {
  FolderName name;
  const size_t hash = std::min(text.rfind('#'), text.size());
  name.path = text.substr(0, hash);
  if (hash == text.size()) return name;
  const std::string_view rest = text.substr(hash + 1);
  const size_t colon = std::min(rest.find(':'), rest.size());
  name.config = rest.substr(0, colon);
  name.split = rest.substr(std::min(colon + 1, rest.size()));
  return name;
}

absl::StatusOr<FolderFiles> FilesOfFolder(const FolderName& folder) {
  const fs::path path(folder.path);
  if (io::Exists((path / "state.json").string())) return SavedFiles(path);
  if (io::Exists((path / "dataset_dict.json").string())) {
    SFT_ASSIGN_OR_RETURN(const Json dict, ReadJsonFile(path / "dataset_dict.json"));
    const auto named = dict.find("splits");
    const std::vector<std::string> names =
        named == dict.end() ? std::vector<std::string>() : PatternsOf(*named);
    SFT_ASSIGN_OR_RETURN(const std::string split, ChooseSplit(names, folder));
    SFT_ASSIGN_OR_RETURN(FolderFiles files, SavedFiles(path / split));
    files.chosen = fmt::format("split {}, saved by datasets", split);
    return files;
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllFiles(path));
  Json card = Json::object();
  if (const std::string readme = (path / "README.md").string(); io::Exists(readme)) {
    SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(readme, 16 << 20));
    SFT_ASSIGN_OR_RETURN(card, ParseFrontMatter(text));
  }
  Splits splits;
  FolderFiles files;
  const auto configs = card.find("configs");
  if (configs != card.end() && configs->is_array() && !configs->empty()) {
    SFT_ASSIGN_OR_RETURN(const Json config, ChooseConfig(*configs, folder));
    splits = SplitsOfConfig(config, all);
    const std::string name = TextOf(config, "config_name");
    if (!name.empty()) files.chosen = fmt::format("config {}, ", name);
  } else if (!folder.config.empty()) {
    return InvalidArgument(fmt::format("{} has no configs (README.md lists none), so not {}",
                                       folder.path, folder.config));
  } else {
    splits = SplitsByName(all);
  }
  std::vector<std::string> names;
  for (const auto& [name, found] : splits) {
    if (!found.empty()) names.push_back(name);
  }
  if (names.empty()) {
    return InvalidArgument(
        fmt::format("{} has no files with rows ({})", folder.path, fmt::join(kEndings, " ")));
  }
  SFT_ASSIGN_OR_RETURN(const std::string split, ChooseSplit(names, folder));
  files.chosen += fmt::format("split {}", split);
  for (const std::string& file : splits[split]) files.paths.push_back((path / file).string());
  return files;
}

}  // namespace sft::data
