#include "common/spec/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sft::spec {

void Draft::SetFromFile(const Field& field, Value value, std::string_view file_name, int line) {
  const DraftEntry* old = Find(field.key);
  if (old != nullptr) {
    if (old->value != value) {
      AddProblemAt(field.key, line,
                   fmt::format("is given twice: {} here and {} in line {}; keep one",
                               ToText(field, value), ToText(field, old->value), old->line));
    } else {
      AddWarning(field.key, fmt::format("is given twice, here and in line {}, with the same value; "
                                        "keep one",
                                        line));
    }
    return;
  }
  entries_[std::string(field.key)] = DraftEntry{.value = std::move(value),
                                                .origin = fmt::format("{}:{}", file_name, line),
                                                .line = line,
                                                .strength = Strength::kFile,
                                                .taken_before = taken_before_};
}

void Draft::SetAttached(const Field& field, Value value, std::string_view name) {
  const std::string text = ToText(field, value);
  const DraftEntry* old = Find(field.key);
  if (old == nullptr) {
    entries_[std::string(field.key)] = DraftEntry{
        std::move(value), fmt::format("DeepSpeed JSON, {}", name), 0, Strength::kFile, true};
    return;
  }
  if (old->value == value) return;
  if (old->strength > Strength::kFile) {
    AddWarning(field.key, fmt::format("{} stands; {} = {} of the DeepSpeed JSON is not used",
                                      Quote(field.key), name, text));
    return;
  }
  AddProblem(field.key, fmt::format("{} contradicts {} = {} of the DeepSpeed JSON; leave one of "
                                    "them out, or write \"auto\" in the JSON",
                                    Quote(field.key), name, text));
}

void Draft::Rewrite(std::string_view key, Value value) {
  entries_.find(key)->second.value = std::move(value);
}

void Draft::SetOverride(const Field& field, Value value, const Override& override_) {
  static constexpr Strength kStrengths[] = {Strength::kEnvironment, Strength::kFlag,
                                            Strength::kSet};
  entries_[std::string(field.key)] =
      DraftEntry{.value = std::move(value),
                 .origin = override_.origin,
                 .strength = kStrengths[static_cast<int>(override_.kind)],
                 .taken_before = override_.taken_before};
}

void Draft::TakeFrom(std::string_view key, std::string_view source) {
  DraftEntry entry = *Find(source);
  entry.given_as = source;
  entries_[std::string(key)] = std::move(entry);
}

void Draft::Derive(std::string_view key, Value value, std::string_view from) {
  entries_[std::string(key)] = DraftEntry{.value = std::move(value),
                                          .origin = fmt::format("derived: {}", from),
                                          .given_as = std::string(from)};
}

void Draft::FillDefaults() {
  for (const Field* field : Fields()) {
    if (!field->derived.empty() || Has(field->key)) continue;
    // An empty text is a legal default only for strings; a test parses every other default.
    auto value = field->type == Type::kString ? Value(std::string(field->def))
                                              : ParseText(*field, field->def).value();
    entries_[std::string(field->key)] = DraftEntry{std::move(value), "default"};
  }
}

const DraftEntry* Draft::Find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

Strength Draft::StrengthOf(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  return entry == nullptr ? Strength::kDefault : entry->strength;
}

bool Draft::DropFromFile(std::string_view key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return true;
  if (found->second.strength > Strength::kFile) return false;
  entries_.erase(found);
  return true;
}

int64_t Draft::Int(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  return entry == nullptr ? 0 : std::get<int64_t>(entry->value);
}

bool Draft::Bool(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  return entry != nullptr && std::get<bool>(entry->value);
}

std::string Draft::String(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  return entry == nullptr ? std::string() : std::get<std::string>(entry->value);
}

double Draft::Float(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  return entry == nullptr ? 0 : std::get<double>(entry->value);
}

std::string_view Draft::WrittenAs(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  const bool copied =
      entry != nullptr && entry->strength > Strength::kDefault && !entry->given_as.empty();
  return copied ? std::string_view(entry->given_as) : key;
}

void Draft::AddProblem(std::string_view key, std::string message) {
  faulty_.emplace(key);
  const DraftEntry* entry = Find(key);
  const bool from_override = entry != nullptr && entry->strength > Strength::kFile;
  if (from_override) message += fmt::format(" (given by {})", entry->origin);
  AddProblemAt(WrittenAs(key), entry == nullptr ? 0 : entry->line, std::move(message));
}

void Draft::AddProblemAt(std::string_view key, int line, std::string message) {
  faulty_.emplace(key);
  if (++problem_count_ > kMostProblems) return;
  problems_.push_back({std::string(key), line, std::move(message)});
}

void Draft::AddUnknown(std::string_view name, int line, bool is_table, std::string_view what) {
  constexpr int kMostCompared = 100;
  std::string nearest;
  if (++unknown_ <= kMostCompared) nearest = is_table ? NearestTable(name) : NearestKey(name);
  AddProblemAt(name, line,
               nearest.empty() ? fmt::format("{}; `sftctl explain` lists all", what)
                               : fmt::format("{}; did you mean {}?", what, nearest));
}

void Draft::AddLater(std::string_view key, std::string message) {
  const DraftEntry* entry = Find(key);
  if (entry != nullptr && entry->taken_before) {
    AddWarning(key, std::move(message));
  } else {
    AddProblem(key, std::move(message));
  }
}

void Draft::AddWarning(std::string_view key, std::string message) {
  if (++warning_count_ > kMostWarnings) return;
  const DraftEntry* entry = Find(key);
  warnings_.push_back({std::string(key), entry == nullptr ? 0 : entry->line, std::move(message)});
}

std::string Draft::Quote(std::string_view key) const {
  const DraftEntry* entry = Find(key);
  if (entry == nullptr) return std::string(key);
  return fmt::format("{} = {} ({})", WrittenAs(key), ToText(*FindField(key), entry->value),
                     entry->origin);
}

bool Draft::Faulty(std::initializer_list<std::string_view> keys) const {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return faulty_.contains(key); });
}

std::vector<ResolvedValue> Draft::Values() const {
  std::vector<ResolvedValue> values;
  for (const Field* field : Fields()) {
    const DraftEntry* entry = Find(field->key);
    if (entry == nullptr || (IsForeign(*field) && entry->strength == Strength::kDefault)) continue;
    values.push_back({std::string(field->key), ToText(*field, entry->value), entry->origin,
                      entry->strength > Strength::kFile, std::string(field->key), entry->line});
    // An error in a value that follows from a key of the file, or was copied from one, is reported
    // at that key.
    if (entry->given_as.empty() || FindField(entry->given_as) == nullptr) continue;
    const DraftEntry* giver = Find(entry->given_as);
    if (giver == nullptr) continue;
    values.back().written_as = WrittenAs(entry->given_as);
    values.back().line = giver->line;
  }
  return values;
}

std::vector<Problem> Draft::TakeWarnings() {
  if (warning_count_ > kMostWarnings) {
    warnings_.push_back(
        {"", 0, fmt::format("{} more warnings are left out", warning_count_ - kMostWarnings)});
  }
  return std::move(warnings_);
}

std::vector<Problem> Draft::TakeProblems() {
  std::stable_sort(problems_.begin(), problems_.end(),
                   [](const Problem& a, const Problem& b) { return a.line < b.line; });
  if (problem_count_ > kMostProblems) {
    problems_.push_back(
        {"", 0, fmt::format("{} more problems are left out", problem_count_ - kMostProblems)});
  }
  return std::move(problems_);
}

}  // namespace sft::spec
