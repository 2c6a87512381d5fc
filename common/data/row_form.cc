#include "common/data/row_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace sft::data {
namespace {

using nlohmann::json;

enum class Kind { kAbsent, kNull, kText, kNumber, kBoolean, kList, kObject };

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kText:
      return "string";
    case Kind::kNumber:
      return "number";
    case Kind::kBoolean:
      return "boolean";
    case Kind::kList:
      return "array";
    case Kind::kObject:
      return "object";
    default:
      return "null";
  }
}

// Columns that tell forms apart. The first three are lists of messages.
enum Column {
  kMessagesColumn,
  kConversationsColumn,
  kConversationColumn,
  kPromptColumn,
  kCompletionColumn,
  kResponseColumn,
  kAnswerColumn,
  kInstructionColumn,
  kInputColumn,
  kOutputColumn,
  kQuestionColumn,
  kQueryColumn,
  kTextColumn,
  kChosenColumn,
  kRejectedColumn,
  kPreferredColumn,
  kNotPreferredColumn,
  kLabelColumn,
  kKtoTagColumn,
  kSegmentsColumn,
  kInputIdsColumn,
  kColumns
};
constexpr std::string_view kColumnNames[kColumns] = {"messages",
                                                     "conversations",
                                                     "conversation",
                                                     "prompt",
                                                     "completion",
                                                     "response",
                                                     "answer",
                                                     "instruction",
                                                     "input",
                                                     "output",
                                                     "question",
                                                     "query",
                                                     "text",
                                                     "chosen",
                                                     "rejected",
                                                     "preferred_output",
                                                     "non_preferred_output",
                                                     "label",
                                                     "kto_tag",
                                                     "segments",
                                                     "input_ids"};
constexpr int kLists = 3;

// Classifies a row while it is parsed. No values are kept: a row of many small ones would be thirty
// times as large in memory as in the file.
class ShapeReader : public nlohmann::json_sax<json> {
 public:
  ShapeReader(const RowNames& names, Learns learns) : names_(names), learns_(learns) {}
  RowShape Read(std::string_view row);

  bool null() override { return Value(Kind::kNull); }
  bool boolean(bool) override { return Value(Kind::kBoolean); }
  bool number_integer(number_integer_t) override { return Value(Kind::kNumber); }
  bool number_unsigned(number_unsigned_t) override { return Value(Kind::kNumber); }
  bool number_float(number_float_t, const string_t&) override { return Value(Kind::kNumber); }
  bool string(string_t&) override { return Value(Kind::kText); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Kind::kObject); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(Kind::kList); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override;
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  struct Entry {
    Kind role = Kind::kAbsent, content = Kind::kAbsent, tool_calls = Kind::kAbsent,
         from = Kind::kAbsent, value = Kind::kAbsent;
  };
  // Entries of a list of messages, by how they are written, and the index of the first bad one.
  struct List {
    int64_t count = 0, chat = 0, share_gpt = 0, first_bad = 0;
  };

  bool Value(Kind kind);
  bool Open(Kind kind);
  bool Close();
  void EndEntry(bool is_object);
  bool Has(Column column) const { return columns_[column] > Kind::kNull; }
  bool Is(Column column, Kind kind) const { return columns_[column] == kind; }
  // The form of a row of preferences; kUnknown for any other.
  Form OfPreferences() const;
  Form FormOfRow() const;
  const List& Messages() const;
  std::string Problem(Form form) const;

  const RowNames& names_;
  const Learns learns_;
  int64_t depth_ = 0;  // open containers
  bool too_deep_ = false;
  Kind* next_ = nullptr;  // result of the key that was read last; null if it is irrelevant
  Kind row_ = Kind::kAbsent;
  // When a key appears twice, the last one counts.
  Kind columns_[kColumns] = {};
  List lists_[kLists];
  int list_ = -1;  // the list that is being read
  bool in_entry_ = false;
  Entry entry_;
};

bool ShapeReader::key(string_t& name) {
  next_ = nullptr;
  if (depth_ == 1) {
    const auto* const found = std::ranges::find(kColumnNames, names_.Column(name));
    if (found != std::end(kColumnNames)) next_ = &columns_[found - kColumnNames];
  } else if (depth_ == 3 && in_entry_) {
    next_ = name == "role"         ? &entry_.role
            : name == "content"    ? &entry_.content
            : name == "tool_calls" ? &entry_.tool_calls
            : name == "from"       ? &entry_.from
            : name == "value"      ? &entry_.value
                                   : nullptr;
  }
  return true;
}

// Called at the start of a value; the depth is that of its container.
bool ShapeReader::Value(Kind kind) {
  if (depth_ == 0) {
    row_ = kind;
  } else if (depth_ == 2 && list_ >= 0) {
    ++lists_[list_].count;
    entry_ = {};
    in_entry_ = kind == Kind::kObject;
    if (!in_entry_) EndEntry(/*is_object=*/false);
  } else if (next_ != nullptr) {
    *next_ = kind;
    if (depth_ == 1 && next_ < columns_ + kLists) {
      const auto index = static_cast<int>(next_ - columns_);
      lists_[index] = {};
      list_ = kind == Kind::kList ? index : -1;
    }
  }
  next_ = nullptr;
  return true;
}

bool ShapeReader::Open(Kind kind) {
  Value(kind);
  too_deep_ |= ++depth_ > kMaxJsonDepth;
  return true;
}

bool ShapeReader::Close() {
  --depth_;
  if (depth_ == 2 && in_entry_) EndEntry(/*is_object=*/true);
  if (depth_ == 1) list_ = -1;
  return true;
}

void ShapeReader::EndEntry(bool is_object) {
  in_entry_ = false;
  List& list = lists_[list_];
  // Content may be text, a list of parts as some chat formats write it, or null beside tool calls.
  const bool has_content = entry_.content == Kind::kText || entry_.content == Kind::kList ||
                           ((entry_.content == Kind::kAbsent || entry_.content == Kind::kNull) &&
                            entry_.tool_calls != Kind::kAbsent);
  if (is_object && entry_.role == Kind::kText && has_content) {
    ++list.chat;
  } else if (is_object && entry_.from == Kind::kText && entry_.value == Kind::kText) {
    ++list.share_gpt;
  } else if (list.first_bad == 0 &&
             !(is_object && entry_.role == Kind::kText && entry_.value == Kind::kText)) {
    list.first_bad = list.count;
  }
}

const ShapeReader::List& ShapeReader::Messages() const {
  for (int i = 0; i < kLists; ++i) {
    if (columns_[i] == Kind::kList) return lists_[i];
  }
  return lists_[0];
}

Form ShapeReader::OfPreferences() const {
  if (Has(kChosenColumn) && Has(kRejectedColumn)) return Form::kPreference;
  if (Has(kPreferredColumn) && Has(kNotPreferredColumn)) return Form::kPreference;
  const bool tagged = Is(kKtoTagColumn, Kind::kBoolean) || Is(kLabelColumn, Kind::kBoolean);
  if (tagged && Has(kPromptColumn) && Has(kCompletionColumn)) return Form::kUnpaired;
  if (Is(kKtoTagColumn, Kind::kBoolean)) return Form::kUnpaired;
  // Elsewhere a label may be a class of the text.
  if (learns_ == Learns::kMarked && tagged) return Form::kUnpaired;
  return Form::kUnknown;
}

Form ShapeReader::FormOfRow() const {
  if (learns_ != Learns::kTexts) {
    if (const Form form = OfPreferences(); form != Form::kUnknown) return form;
  }
  // Sets of pairs often repeat the chosen conversation as messages: it can be learnt from.
  if (Has(kMessagesColumn) && lists_[0].share_gpt == 0 && !Is(kKtoTagColumn, Kind::kBoolean)) {
    return lists_[0].chat == lists_[0].count || lists_[0].first_bad > 0 ? Form::kMessages
                                                                        : Form::kMixed;
  }
  if (const Form form = OfPreferences(); form != Form::kUnknown) return form;
  if (Has(kMessagesColumn) || Has(kConversationsColumn) || Has(kConversationColumn)) {
    const List& list = Messages();
    return list.share_gpt == list.count ? Form::kShareGpt
           : list.chat == list.count    ? Form::kMessages
                                        : Form::kMixed;
  }
  if (Has(kPromptColumn) && (columns_[kCompletionColumn] != Kind::kAbsent || Has(kResponseColumn) ||
                             Has(kAnswerColumn))) {
    return Form::kCompletion;
  }
  if (Has(kInstructionColumn) && (Has(kOutputColumn) || Has(kResponseColumn))) {
    return Form::kAlpaca;
  }
  if ((Has(kQuestionColumn) && Has(kAnswerColumn)) || (Has(kQueryColumn) && Has(kResponseColumn))) {
    return Form::kQuestion;
  }
  if (Has(kSegmentsColumn)) return Form::kSegments;
  if (Has(kTextColumn)) return Form::kText;
  if (Has(kInputIdsColumn)) return Form::kTokens;
  if (Has(kPromptColumn)) return Form::kPromptOnly;
  return Form::kUnknown;
}

std::string ShapeReader::Problem(Form form) const {
  if (const std::string_view refusal = FormRefusal(form, learns_); !refusal.empty()) {
    return std::string(refusal);
  }
  const auto all_text = [this](std::initializer_list<Column> columns) {
    return std::ranges::all_of(
        columns, [this](Column column) { return !Has(column) || Is(column, Kind::kText); });
  };
  switch (form) {
    case Form::kMessages:
    case Form::kShareGpt:
    case Form::kMixed: {
      const List& list = Messages();
      if (list.count == 0) {
        const bool ours = Has(kMessagesColumn);
        return fmt::format("\"{}\" must be a list of messages", ours ? "messages"
                                                                : Has(kConversationsColumn)
                                                                    ? "conversations"
                                                                    : "conversation");
      }
      if (list.first_bad == 0) return "";
      return fmt::format("message {} must be an object with \"role\" and \"content\", both text",
                         list.first_bad);
    }
    case Form::kCompletion: {
      const Column answer = columns_[kCompletionColumn] != Kind::kAbsent ? kCompletionColumn
                            : Has(kResponseColumn)                       ? kResponseColumn
                                                                         : kAnswerColumn;
      const Kind kind = columns_[kPromptColumn];
      if (kind == columns_[answer] && (kind == Kind::kText || kind == Kind::kList)) return "";
      return fmt::format("\"prompt\" and \"{}\" must both be there, both text",
                         kColumnNames[answer]);
    }
    case Form::kAlpaca:
      if (all_text({kInstructionColumn, kInputColumn, kOutputColumn, kResponseColumn})) return "";
      return "\"instruction\", \"input\" and \"output\" must be text";
    case Form::kQuestion:
      if (all_text({kQuestionColumn, kAnswerColumn, kQueryColumn, kResponseColumn})) return "";
      return "question and answer must be text";
    case Form::kText:
      return Is(kTextColumn, Kind::kText) ? "" : "\"text\" must be text";
    case Form::kPreference: {
      const bool ours = Has(kChosenColumn) && Has(kRejectedColumn);
      const Column good = ours ? kChosenColumn : kPreferredColumn,
                   bad = ours ? kRejectedColumn : kNotPreferredColumn;
      const Kind kind = columns_[good];
      const bool answers = kind == Kind::kText || kind == Kind::kList || kind == Kind::kObject;
      if (answers && columns_[bad] == kind) return "";
      return fmt::format("\"{}\" and \"{}\" must both be text, or both messages",
                         kColumnNames[good], kColumnNames[bad]);
    }
    case Form::kUnpaired:
      return "";
    default:
      return "none of the row forms: \"messages\", \"conversations\", \"prompt\" with "
             "\"completion\", \"instruction\" with \"output\", \"question\" with \"answer\", or "
             "\"text\"; name columns with data.columns where they are called otherwise";
  }
}

RowShape ShapeReader::Read(std::string_view row) {
  RowShape shape;
  shape.is_json = json::sax_parse(row.begin(), row.end(), this);
  if (!shape.is_json) return shape;
  if (row_ != Kind::kObject) {
    shape.kind = NameOf(row_);
    return shape;
  }
  shape.form = FormOfRow();
  shape.problem = too_deep_ ? fmt::format("nested more than {} levels deep", kMaxJsonDepth)
                            : Problem(shape.form);
  return shape;
}

}  // namespace

Learns LearnsOf(std::string_view loss, std::string_view kind) {
  if (kind == "export" || kind == "evaluate") return Learns::kChosen;
  if (loss == "kto") return Learns::kMarked;
  const bool pairs = loss == "dpo" || loss == "orpo" || loss == "simpo";
  return pairs ? Learns::kPairs : Learns::kTexts;
}

std::string_view FormName(Form form) {
  switch (form) {
    case Form::kMessages:
      return "messages";
    case Form::kShareGpt:
      return "ShareGPT";
    case Form::kMixed:
      return "ShareGPT with roles";
    case Form::kCompletion:
      return "prompt + completion";
    case Form::kAlpaca:
      return "Alpaca";
    case Form::kQuestion:
      return "question + answer";
    case Form::kText:
      return "text";
    case Form::kPreference:
      return "preference pairs";
    case Form::kUnpaired:
      return "unpaired preferences";
    case Form::kSegments:
      return "segments";
    case Form::kTokens:
      return "tokens";
    case Form::kPromptOnly:
      return "prompts alone";
    case Form::kUnknown:
      break;
  }
  return "unknown";
}

namespace {

// The same where the job's loss compares answers.
std::string_view RefusalOfPreferences(Form form, Learns learns) {
  if (form == Form::kPreference || (form == Form::kUnpaired && learns == Learns::kMarked)) {
    return "";
  }
  if (form == Form::kUnpaired) {
    return "an answer with a mark for good or bad, which this job's loss cannot use: it compares "
           "a \"chosen\" with a \"rejected\" answer; training.loss = \"kto\" learns from "
           "marks";
  }
  return learns == Learns::kPairs
             ? "no preference pair: this job's loss needs \"prompt\", \"chosen\" and "
               "\"rejected\"; training.loss = \"sft\" learns from other rows"
             : "no marked answer: training.loss = \"kto\" needs \"prompt\", \"completion\" and "
               "\"label\" (true or false), \"messages\" with \"label\", or \"chosen\" and "
               "\"rejected\"";
}

}  // namespace

std::string_view FormRefusal(Form form, Learns learns) {
  if (Compares(learns)) return RefusalOfPreferences(form, learns);
  const bool preferred = form == Form::kPreference || form == Form::kUnpaired;
  if (learns == Learns::kChosen && preferred) return "";
  switch (form) {
    case Form::kPreference:
      return "a preference pair (a chosen and a rejected answer), which supervised fine-tuning "
             "cannot use; set training.loss = \"dpo\" (or \"orpo\", \"simpo\"), or keep the chosen "
             "answer alone, as \"completion\" or in \"messages\"";
    case Form::kUnpaired:
      return "an answer with a mark for good or bad (KTO), which supervised fine-tuning cannot "
             "use; set training.loss = \"kto\", or keep the good ones and leave the mark out";
    case Form::kSegments:
      return "\"segments\" with labels, which are not read; write the row as \"prompt\" and "
             "\"completion\", or as \"messages\"";
    case Form::kTokens:
      return "\"input_ids\": tokens of one tokenizer, which are not read; give the text";
    case Form::kPromptOnly:
      return "a prompt without an answer; \"prompt\" and \"completion\" must both be there, both "
             "text";
    default:
      return "";
  }
}

std::string FormsText(const FormCounts& counts) {
  std::string text;
  for (int i = kForms; i-- > 0;) {
    // Unknown rows last, the others as they are listed.
    const auto form = static_cast<size_t>((kForms - i) % kForms);
    if (counts[form] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", counts[form],
                        FormName(static_cast<Form>(form)));
  }
  return text;
}

std::string_view RowNames::Column(std::string_view name) const {
  for (const auto& [theirs, ours] : columns) {
    if (theirs == name) return ours;
  }
  for (const auto& [theirs, ours] : columns) {
    if (ours == name) return "";
  }
  // Both are written so in sets that tables of capitals were made into.
  if (name == "INSTRUCTION") return "instruction";
  if (name == "RESPONSE") return "response";
  return name;
}

RowNames NamesOf(const std::vector<std::string>& columns, const std::vector<std::string>& roles) {
  RowNames names;
  const auto add = [](const std::vector<std::string>& from, auto& to) {
    for (const std::string& pair : from) {
      const size_t equals = std::min(pair.find('='), pair.size());
      to.emplace_back(pair.substr(std::min(equals + 1, pair.size())), pair.substr(0, equals));
    }
  };
  add(columns, names.columns);
  add(roles, names.roles);
  return names;
}

RowShape ShapeOf(std::string_view row, const RowNames& names, Learns learns) {
  return ShapeReader(names, learns).Read(row);
}

}  // namespace sft::data
