#include "common/columnar/parquet_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/columnar/parquet_column.h"
#include "common/columnar/parquet_schema.h"
#include "common/io/file.h"

namespace sft::columnar {
namespace {

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr int64_t kTailBytes = 8;
constexpr int64_t kMostFooter = 64 << 20;

absl::StatusOr<ParquetFooter> ReadFooter(int fd, std::string_view path) {
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(fd, path));
  char tail[kTailBytes];
  const int64_t at = std::max<int64_t>(size - kTailBytes, 0);
  SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd, at, tail, sizeof(tail), path));
  const std::string_view magic = std::string_view(tail, got).substr(got < 4 ? got : got - 4);
  if (magic == kEncryptedMagic) {
    return InvalidArgument("the Parquet file is encrypted, which is not read; write it without");
  }
  if (magic != kMagic || size < kTailBytes + 4) {
    return InvalidArgument(
        "a Parquet file that is cut short: its end is missing; copy or download it again");
  }
  uint32_t footer_size = 0;
  std::memcpy(&footer_size, tail, 4);
  if (footer_size > size - kTailBytes - 4 || footer_size > kMostFooter) {
    return InvalidArgument(fmt::format("its Parquet footer is damaged: it says that it has {}",
                                       BytesText(footer_size)));
  }
  std::string footer(footer_size, '\0');
  SFT_ASSIGN_OR_RETURN(const size_t read, io::ReadAt(fd, size - kTailBytes - footer_size,
                                                     footer.data(), footer.size(), path));
  footer.resize(read);
  return ParseFooter(footer, size);
}

// Puts rows together from the columns of a row group: Dremel's assembly.
class Assembler {
 public:
  Assembler(const Node& root, std::vector<std::unique_ptr<ColumnReader>> columns,
            RowCounter& counter)
      : root_(root), columns_(std::move(columns)), counter_(counter) {}

  absl::StatusOr<std::string_view> Row() {
    text_.clear();
    counter_.Work(static_cast<int64_t>(columns_.size()));
    if (counter_.spent()) return counter_.TooMuchWork();
    for (const auto& column : columns_) {
      SFT_RETURN_IF_ERROR(column->status());
      if (column->at_end() || column->repetition() != 0) {
        return Damaged(*column, "its rows are not those of the other columns");
      }
    }
    Members(root_, /*keep_nulls=*/false);
    for (const auto& column : columns_) SFT_RETURN_IF_ERROR(column->status());
    SFT_RETURN_IF_ERROR(status_);
    return text_;
  }

  absl::Status Finish() const {
    for (const auto& column : columns_) {
      SFT_RETURN_IF_ERROR(column->status());
      if (!column->at_end()) return Damaged(*column, "it has more rows than the others");
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Damaged(const ColumnReader& column, std::string_view what) {
    return InvalidArgument(
        fmt::format("column {}: {}; the file is damaged", column.leaf().path, what));
  }

  const ColumnReader& First(const Node& node) const { return *columns_[node.begin]; }

  // Whether no value stands at the node: nothing was written, or what JSON has no word for.
  bool IsNull(const Node& node) const {
    const ColumnReader& first = First(node);
    if (node.optional && first.definition() < node.definition) return true;
    return node.kind == Node::kLeaf && first.definition() == first.leaf().max_definition &&
           HasNoJson(first.leaf().form, first.value());
  }

  void Pass(const Node& node) {
    counter_.Work(static_cast<int64_t>(node.end - node.begin));
    for (size_t i = node.begin; i < node.end; ++i) columns_[i]->Next();
  }

  void Put(const Node& node, bool keep_nulls) {
    counter_.Work(1);
    if (IsNull(node)) {
      text_ += "null";
      return Pass(node);
    }
    switch (node.kind) {
      case Node::kLeaf:
        return Leaf(*columns_[node.begin]);
      case Node::kStruct:
        return Members(node, keep_nulls);
      case Node::kList:
      case Node::kMap:
        return Items(node, keep_nulls);
    }
  }

  void Leaf(ColumnReader& column) {
    // Where columns do not agree, the value of one may not be there.
    if (column.definition() < column.leaf().max_definition) {
      if (status_.ok()) status_ = Damaged(column, "a value is missing");
      text_ += "null";
      return column.Next();
    }
    const ValueForm& form = column.leaf().form;
    if (form.meaning == Meaning::kBytes) {
      counter_.Work(static_cast<int64_t>(column.value().bytes.size()));
    }
    if (LongerThan(form, column.value(),
                   counter_.max_row_bytes() - static_cast<int64_t>(text_.size()))) {
      if (status_.ok()) status_ = counter_.TooLong();
    } else if (!AppendValue(form, column.value(), text_) && status_.ok()) {
      status_ = Unread(column);
    }
    column.Next();
  }

  static absl::Status Unread(const ColumnReader& column) {
    const columnar::Leaf& leaf = column.leaf();
    if (leaf.form.meaning != Meaning::kDecimal) {
      return InvalidArgument(fmt::format("column {}: the text is not UTF-8", leaf.path));
    }
    const auto size = static_cast<int64_t>(column.value().bytes.size());
    SFT_RETURN_IF_ERROR(CheckDecimal(leaf.path, size, leaf.form.scale));
    return Damaged(column, "a decimal without bytes");
  }

  void Members(const Node& node, bool keep_nulls) {
    text_ += '{';
    bool first = true;
    for (const Node& child : node.children) {
      if (Stops()) break;
      if (!keep_nulls && IsNull(child)) {
        Pass(child);
        continue;
      }
      if (!first) text_ += ',';
      first = false;
      AppendQuoted(child.name, text_);
      text_ += ':';
      Put(child, keep_nulls || KeepsNulls(child.name));
    }
    text_ += '}';
  }

  void Items(const Node& node, bool keep_nulls) {
    const bool map = node.kind == Node::kMap;
    const ColumnReader& first = First(node);
    text_ += map ? '{' : '[';
    if (first.definition() < node.item_definition) {
      Pass(node);
    } else {
      for (bool more = false;; more = true) {
        if (more) text_ += ',';
        map ? Entry(node) : Put(node.children.front(), keep_nulls);
        if (first.repetition() < node.item_repetition || Stops()) break;
      }
    }
    text_ += map ? '}' : ']';
  }

  // Keys of JSON are texts.
  void Entry(const Node& node) {
    const size_t begin = text_.size();
    Put(node.children[0], /*keep_nulls=*/true);
    if (text_[begin] != '"') {
      const std::string key = text_.substr(begin);
      text_.resize(begin);
      AppendQuoted(key, text_);
    }
    text_ += ':';
    Put(node.children[1], /*keep_nulls=*/false);
  }

  // Whether the row is refused in any case.
  bool Stops() {
    if (status_.ok() && static_cast<int64_t>(text_.size()) > counter_.max_row_bytes()) {
      status_ = counter_.TooLong();
    }
    if (status_.ok() && counter_.spent()) status_ = counter_.TooMuchWork();
    return !status_.ok();
  }

  const Node& root_;
  std::vector<std::unique_ptr<ColumnReader>> columns_;
  RowCounter& counter_;
  std::string text_;
  absl::Status status_;
};

}  // namespace

bool LooksLikeParquet(std::string_view head) { return head.starts_with(kMagic); }

absl::Status ReadParquet(int fd, std::string_view path, const RowLimits& limits,
                         const TakeObject& take) {
  SFT_ASSIGN_OR_RETURN(const ParquetFooter footer, ReadFooter(fd, path));
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(fd, path));
  RowCounter counter(limits, size);
  PageMemory memory{.counter = counter};
  int64_t row = 0;
  for (const RowGroup& group : footer.groups) {
    std::vector<std::unique_ptr<ColumnReader>> columns;
    columns.reserve(footer.leaves.size());
    for (size_t i = 0; i < footer.leaves.size(); ++i) {
      columns.push_back(std::make_unique<ColumnReader>(fd, std::string(path), footer.leaves[i],
                                                       group.chunks[i], memory));
    }
    Assembler assembler(footer.root, std::move(columns), counter);
    for (int64_t i = 0; i < group.rows; ++i) {
      ++row;
      absl::StatusOr<std::string_view> text = assembler.Row();
      absl::Status status = text.status();
      if (status.ok()) status = counter.Add(*text);
      if (!status.ok()) return Annotate(status, fmt::format("row {}", row));
      SFT_ASSIGN_OR_RETURN(const bool more, take(row, *text));
      if (!more) return absl::OkStatus();
    }
    SFT_RETURN_IF_ERROR(assembler.Finish());
  }
  return absl::OkStatus();
}

}  // namespace sft::columnar
