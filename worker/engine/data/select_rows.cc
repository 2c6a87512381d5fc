#include "worker/engine/data/select_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "common/base/json.h"
#include "common/data/row_reader.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/files.h"
#include "worker/engine/data/preference_row.h"
#include "worker/engine/data/row.h"

namespace sft::engine {
namespace {

constexpr size_t kRowsAtOnce = 256;
constexpr size_t kFirstRepeats = 3;

using Key = std::array<uint64_t, 2>;

Key KeyOf(std::string_view text) {
  io::Sha256 sha;
  sha.Update(text.data(), text.size());
  const io::Sha256::Digest digest = sha.Finish();
  Key key;
  std::memcpy(key.data(), digest.data(), sizeof(key));
  return key;
}

struct RowKeys {
  Key group = {}, repeat = {};
};

// A conversation up to its first answer, or what stands in place of it.
struct PromptOf {
  std::string operator()(const ConversationRow& row) const {
    nlohmann::ordered_json prompt = nlohmann::ordered_json::array();
    for (const auto& message : row.messages) {
      if (message.value("role", "") == "assistant") break;
      prompt.push_back(message);
    }
    return DumpJson(prompt);
  }
  std::string operator()(const CompletionRow& row) const { return row.prompt; }
  std::string operator()(const TextRow& row) const { return row.text; }
};

// The first question: rows that ask the same belong together.
struct QuestionOf {
  std::string operator()(const ConversationRow& row) const {
    for (const auto& message : row.messages) {
      if (message.value("role", "") == "user" && message.contains("content")) {
        return DumpJson(message["content"]);
      }
    }
    return DumpJson(row.messages);
  }
  std::string operator()(const CompletionRow& row) const { return row.prompt; }
  std::string operator()(const TextRow& row) const { return row.text; }
};

struct WholeOf {
  std::string operator()(const ConversationRow& row) const {
    std::string trained;
    for (const bool each : row.trained) trained += each ? '1' : '0';
    return DumpJson(nlohmann::ordered_json{row.messages, row.tools, row.variables, trained});
  }
  std::string operator()(const CompletionRow& row) const {
    return DumpJson(nlohmann::ordered_json{row.prompt, row.completion});
  }
  std::string operator()(const TextRow& row) const { return "text " + row.text; }
};

std::string ColumnOf(const Line& line, const PrepareOptions& options) {
  const nlohmann::ordered_json row = ParseOrderedJson(line.text);
  if (!row.is_object()) return std::string(line.text);
  const auto found = row.find(options.group_by);
  if (found == row.end()) {
    throw UserError(fmt::format("{}: line {} has no column \"{}\" (data.group_by)", options.Name(),
                                line.number, options.group_by),
                    "bad_rows", "name a column that every row has, or leave data.group_by out");
  }
  return DumpJson(*found);
}

RowKeys KeysOfPreference(const Line& line, const PrepareOptions& options) {
  data::Form form = data::Form::kUnknown;
  const std::vector<MarkedAnswer> answers =
      ParsePreference(line.text, options.names, options.learns, &form);
  std::string whole;
  for (const MarkedAnswer& answer : answers) {
    whole += (answer.good ? "good " : "bad ") + std::visit(WholeOf(), answer.row);
  }
  const Row& first = answers.front().row;
  const bool by_prompt = options.dedup == spec::Dedup::kPrompt;
  return {.group = KeyOf(std::visit(QuestionOf(), first)),
          .repeat = KeyOf(by_prompt ? std::visit(PromptOf(), first) : whole)};
}

RowKeys KeysOf(const Line& line, const PrepareOptions& options) {
  RowKeys keys;
  // A row that cannot be read stands for itself; whoever encodes it says what is wrong.
  keys.group = keys.repeat = KeyOf(line.text);
  const bool by_column = !options.group_by.empty();
  if (by_column && options.hold_out.on()) keys.group = KeyOf(ColumnOf(line, options));
  try {
    if (data::Compares(options.learns)) {
      const RowKeys own = KeysOfPreference(line, options);
      keys.repeat = own.repeat;
      if (!by_column) keys.group = own.group;
      return keys;
    }
    data::Form form = data::Form::kUnknown;
    const Row row = options.learns == data::Learns::kChosen
                        ? ParseChosen(line.text, options.names, &form)
                        : ParseRow(line.text, options.names);
    if (!by_column) keys.group = KeyOf(std::visit(QuestionOf(), row));
    keys.repeat = KeyOf(options.dedup == spec::Dedup::kPrompt ? std::visit(PromptOf(), row)
                                                              : std::visit(WholeOf(), row));
  } catch (const RowError&) {
  }
  return keys;
}

std::vector<RowKeys> AllKeys(const std::vector<Line>& lines, const PrepareOptions& options) {
  std::vector<RowKeys> keys(lines.size());
  std::atomic<size_t> next = 0;
  const auto work = [&](std::exception_ptr& failure) {
    try {
      for (size_t begin; (begin = next.fetch_add(kRowsAtOnce)) < lines.size();) {
        for (size_t i = begin; i < std::min(begin + kRowsAtOnce, lines.size()); ++i) {
          keys[i] = KeysOf(lines[i], options);
        }
      }
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
  };
  const size_t wanted = static_cast<size_t>(
      std::max(1, options.threads > 0 ? options.threads
                                      : static_cast<int>(std::thread::hardware_concurrency())));
  std::vector<std::exception_ptr> failures(
      std::clamp<size_t>(wanted, 1, lines.size() / kRowsAtOnce + 1));
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < failures.size(); ++i) {
      others.emplace_back([&work, &failures, i] { work(failures[i]); });
    }
    work(failures[0]);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return keys;
}

// Where a group stands among all: any seed draws another order.
uint64_t PlaceOf(const Key& group, uint64_t seed) {
  uint64_t z = group[0] ^ (seed * 0x9e3779b97f4a7c15ULL + group[1]);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Groups whose place is below this are held out.
uint64_t BoundOf(const std::vector<RowKeys>& keys, const PrepareOptions& options) {
  if (options.hold_out.share > 0) {
    return static_cast<uint64_t>(options.hold_out.share * 18446744073709551616.0);
  }
  std::map<uint64_t, int64_t> rows;  // by place
  for (const RowKeys& key : keys) ++rows[PlaceOf(key.group, options.seed)];
  int64_t held = 0;
  for (const auto& [place, count] : rows) {
    if (held >= options.hold_out.rows) return place;
    held += count;
  }
  return UINT64_MAX;
}

// Which side a row is on depends on all rows, so it is chosen before repeats go.
void Divide(const std::vector<RowKeys>& keys, const PrepareOptions& options,
            std::vector<bool>& taken, RowSelection& selection) {
  const uint64_t bound = BoundOf(keys, options);
  int64_t held = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool out = PlaceOf(keys[i].group, options.seed) < bound;
    held += out;
    if (out != options.held_out_side) {
      taken[i] = false;
      ++selection.held_out;
    }
  }
  const auto rows = static_cast<int64_t>(keys.size());
  if ((held > 0 && held < rows) || options.one_of_several) return;
  throw UserError(
      fmt::format("{}: data.val_split leaves no row for {}: {} of its {} rows are held out",
                  options.Name(), held == 0 ? "validation" : "training", held, rows),
      "bad_rows",
      "hold out another share or number of rows; rows with the same first question, or the same "
      "data.group_by, stay together");
}

// The rows of a file that comes before.
void AddEarlier(const PrepareOptions& file, const PrepareOptions& options, std::set<Key>& seen) {
  const MappedFile mapped = MappedFile::Open(file.data, file.stamp);
  const RowSource source(mapped, file);
  PrepareOptions keyed = options;
  keyed.hold_out = {};  // its column is not asked for
  for (const RowKeys& keys : AllKeys(source.lines(), keyed)) seen.insert(keys.repeat);
}

}  // namespace

std::string EarlierText(const PrepareOptions& options) {
  std::string text;
  if (options.dedup == spec::Dedup::kOff) return text;
  for (const PrepareOptions& file : options.earlier) {
    const MappedFile mapped = MappedFile::Open(file.data, file.stamp);
    text += fmt::format(" after {} {} {}", io::Sha256Hex(mapped.bytes()), file.max_examples,
                        static_cast<int>(data::ContainerOf(
                            file.Name(), mapped.bytes().substr(0, size_t{1} << 20))));
  }
  return text;
}

RowSelection SelectRows(std::vector<Line> lines, const PrepareOptions& options) {
  RowSelection selection;
  if (!options.hold_out.on() && options.dedup == spec::Dedup::kOff) {
    selection.lines = std::move(lines);
    return selection;
  }
  const std::vector<RowKeys> keys = AllKeys(lines, options);
  std::vector<bool> taken(lines.size(), true);
  if (options.hold_out.on()) Divide(keys, options, taken, selection);
  std::set<Key> seen;
  if (options.dedup != spec::Dedup::kOff) {
    for (const PrepareOptions& file : options.earlier) AddEarlier(file, options, seen);
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!taken[i]) continue;
    if (options.dedup != spec::Dedup::kOff && !seen.insert(keys[i].repeat).second) {
      ++selection.repeated;
      if (selection.repeats.size() < kFirstRepeats) selection.repeats.push_back(lines[i].number);
      continue;
    }
    selection.lines.push_back(lines[i]);
  }
  if (!selection.lines.empty() || options.one_of_several) return selection;
  throw UserError(fmt::format("{}: none of its rows is left: {} repeat an earlier one (data.dedup)",
                              options.Name(), selection.repeated),
                  "bad_rows", "leave data.dedup out, or take another file");
}

}  // namespace sft::engine
