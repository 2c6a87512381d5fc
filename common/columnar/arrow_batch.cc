#include "common/columnar/arrow_batch.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "common/base/bytes.h"
#include "common/columnar/page_codec.h"

namespace sft::columnar {
namespace {

// No length or count of a file is above it, so that sums and products of a few fit.
constexpr int64_t kMostCount = int64_t{1} << 40;

template <typename T>
T LoadAt(std::string_view bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

bool BitAt(std::string_view bits, int64_t index) {
  return (static_cast<unsigned char>(bits[static_cast<size_t>(index / 8)]) >> (index % 8) & 1) != 0;
}

int64_t IntAt(std::string_view data, int width, bool is_signed, int64_t index) {
  switch (width) {
    case 1:
      return is_signed ? LoadAt<int8_t>(data, index) : LoadAt<uint8_t>(data, index);
    case 2:
      return is_signed ? LoadAt<int16_t>(data, index) : LoadAt<uint16_t>(data, index);
    case 4:
      return is_signed ? LoadAt<int32_t>(data, index)
                       : static_cast<int64_t>(LoadAt<uint32_t>(data, index));
    default:
      return LoadAt<int64_t>(data, index);
  }
}

// The bytes of a value from low to high become those of a big-endian number, as decimals are read.
void Reverse(std::string_view bytes, std::string& out) { out.assign(bytes.rbegin(), bytes.rend()); }

// Writes values of a batch as JSON.
class RowWriter {
 public:
  RowWriter(std::string& out, RowCounter& counter) : out_(out), counter_(counter) {}

  void Members(const std::vector<ArrowColumn>& columns, int64_t index, bool keep_nulls) {
    out_ += '{';
    bool first = true;
    counter_.Work(static_cast<int64_t>(columns.size()));
    for (const ArrowColumn& column : columns) {
      if (Stops()) break;
      if (!keep_nulls && IsNull(column, index)) continue;
      if (!first) out_ += ',';
      first = false;
      AppendQuoted(column.field->name, out_);
      out_ += ':';
      Put(column, index, keep_nulls || KeepsNulls(column.field->name));
    }
    out_ += '}';
  }

  absl::Status Result() const {
    if (too_long_) return counter_.TooLong();
    return ok_ ? absl::OkStatus() : InvalidArgument("damaged, or a text that is not UTF-8");
  }

 private:
  bool IsNull(const ArrowColumn& column, int64_t index) {
    if (index < 0 || index >= column.length) {
      ok_ = false;
      return true;
    }
    if (!column.valid.empty() && !BitAt(column.valid, index)) return true;
    if (column.dictionary != nullptr) return IsNull(*column.dictionary, Entry(column, index));
    if (column.field->layout == ArrowField::kNothing) return true;
    return column.field->layout == ArrowField::kFixed &&
           HasNoJson(column.field->form, ValueAt(column, index));
  }

  static int64_t Entry(const ArrowColumn& column, int64_t index) {
    return IntAt(column.data, column.field->index_width, column.field->index_signed, index);
  }

  Value ValueAt(const ArrowColumn& column, int64_t index) {
    const ArrowField& field = *column.field;
    Value value;
    if (field.layout == ArrowField::kBits) {
      value.number = BitAt(column.data, index);
      return value;
    }
    switch (field.form.meaning) {
      case Meaning::kHalf:
        value.real = HalfToDouble(LoadAt<uint16_t>(column.data, index));
        break;
      case Meaning::kFloat:
        value.real = LoadAt<float>(column.data, index);
        break;
      case Meaning::kDouble:
        value.real = LoadAt<double>(column.data, index);
        break;
      case Meaning::kDecimal:
        Reverse(column.data.substr(static_cast<size_t>(index * field.width),
                                   static_cast<size_t>(field.width)),
                scratch_);
        value.bytes = scratch_;
        break;
      case Meaning::kText:
      case Meaning::kBytes:
      case Meaning::kUuid:
        value.bytes = column.data.substr(static_cast<size_t>(index * field.width),
                                         static_cast<size_t>(field.width));
        break;
      default:
        value.number = IntAt(column.data, field.width, field.is_signed, index);
    }
    return value;
  }

  // Where the items of a list, or the bytes of a text, begin and end.
  std::pair<int64_t, int64_t> Range(const ArrowColumn& column, int64_t index, int64_t most) {
    if (column.field->layout == ArrowField::kFixedList) {
      return {index * column.field->width, (index + 1) * column.field->width};
    }
    const bool large = column.field->large;
    const int64_t begin =
        large ? LoadAt<int64_t>(column.offsets, index) : LoadAt<int32_t>(column.offsets, index);
    const int64_t end = large ? LoadAt<int64_t>(column.offsets, index + 1)
                              : LoadAt<int32_t>(column.offsets, index + 1);
    if (begin >= 0 && begin <= end && end <= most) return {begin, end};
    ok_ = false;
    return {0, 0};
  }

  void Put(const ArrowColumn& column, int64_t index, bool keep_nulls) {
    if (IsNull(column, index)) {
      out_ += "null";
      return;
    }
    if (column.dictionary != nullptr) {
      return Put(*column.dictionary, Entry(column, index), keep_nulls);
    }
    switch (column.field->layout) {
      case ArrowField::kStruct:
        return Members(column.children, index, keep_nulls);
      case ArrowField::kList:
      case ArrowField::kFixedList:
        return Items(column, index, keep_nulls);
      case ArrowField::kMap:
        return Entries(column, index);
      case ArrowField::kBytes: {
        const auto [begin, end] = Range(column, index, static_cast<int64_t>(column.data.size()));
        Value value;
        value.bytes =
            column.data.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
        return Append(column.field->form, value);
      }
      default:
        Append(column.field->form, ValueAt(column, index));
    }
  }

  void Append(const ValueForm& form, const Value& value) {
    if (form.meaning == Meaning::kBytes) {
      counter_.Work(static_cast<int64_t>(value.bytes.size()));
    }
    if (LongerThan(form, value, counter_.max_row_bytes() - static_cast<int64_t>(out_.size()))) {
      too_long_ = true;
      return;
    }
    ok_ = AppendValue(form, value, out_) && ok_;
  }

  // Whether the row is refused in any case.
  bool Stops() {
    too_long_ = too_long_ || static_cast<int64_t>(out_.size()) > counter_.max_row_bytes();
    return too_long_ || counter_.spent();
  }

  void Items(const ArrowColumn& column, int64_t index, bool keep_nulls) {
    const ArrowColumn& items = column.children.front();
    const auto [begin, end] = Range(column, index, items.length);
    out_ += '[';
    for (int64_t i = begin; i < end && !Stops(); ++i) {
      if (i > begin) out_ += ',';
      Put(items, i, keep_nulls);
    }
    out_ += ']';
  }

  void Entries(const ArrowColumn& column, int64_t index) {
    const ArrowColumn& entries = column.children.front();
    const auto [begin, end] = Range(column, index, entries.length);
    out_ += '{';
    for (int64_t i = begin; i < end && !Stops(); ++i) {
      if (i > begin) out_ += ',';
      const size_t at = out_.size();
      Put(entries.children[0], i, /*keep_nulls=*/true);
      if (out_[at] != '"') {  // keys of JSON are texts
        const std::string key = out_.substr(at);
        out_.resize(at);
        AppendQuoted(key, out_);
      }
      out_ += ':';
      Put(entries.children[1], i, /*keep_nulls=*/false);
    }
    out_ += '}';
  }

  std::string& out_;
  RowCounter& counter_;
  std::string scratch_;
  bool ok_ = true, too_long_ = false;
};

}  // namespace

// Hands out the nodes and buffers of a batch to its fields.
class ArrowBatch::Maker {
 public:
  Maker(ArrowBatch& made, const FlatTable& batch, const Dictionaries& dictionaries,
        int64_t most_bytes)
      : made_(made), batch_(batch), dictionaries_(dictionaries), most_bytes_(most_bytes) {
    nodes_ = batch.Vector(1, 16, node_count_);
    buffers_ = batch.Vector(2, 16, buffer_count_);
    const FlatTable compression = batch.Table(3);
    if (compression.there()) codec_ = compression.Get<int8_t>(0, 0);
  }

  absl::Status Run(const std::vector<ArrowField>& fields) {
    made_.rows_ = batch_.Get<int64_t>(0, 0);
    if (made_.rows_ < 0 || made_.rows_ > kMostCount) return Damaged("its count of rows");
    for (const ArrowField& field : fields) {
      made_.columns_.emplace_back();
      SFT_RETURN_IF_ERROR(Fill(field, made_.columns_.back()));
      if (made_.columns_.back().length < made_.rows_) return Damaged("a column is too short");
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Damaged(std::string_view what) {
    return InvalidArgument(fmt::format("a batch of rows is damaged: {}", what));
  }

  absl::Status Unpack(std::string_view& bytes) {
    if (codec_ < 0 || bytes.empty()) return absl::OkStatus();
    if (bytes.size() < 8) return Damaged("a packed buffer");
    const auto size = LoadAt<int64_t>(bytes, 0);
    bytes.remove_prefix(8);
    if (size == -1) return absl::OkStatus();
    if (size < 0 || size > most_bytes_ - made_.bytes_) {
      return InvalidArgument(fmt::format(
          "a batch of rows takes more than {} of memory; write the table in smaller batches",
          BytesText(most_bytes_)));
    }
    made_.bytes_ += size;
    auto out = std::make_unique<std::string>(static_cast<size_t>(size), '\0');
    if (codec_ == 0 ? !UnpackLz4Frame(bytes, *out) : codec_ != 1 || !UnpackZstd(bytes, *out)) {
      return Damaged("a buffer that cannot be unpacked");
    }
    bytes = *out;
    made_.unpacked_.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status Take(std::string_view& bytes) {
    if (next_buffer_ == buffer_count_) return Damaged("it has too few buffers");
    const size_t at = buffers_ + 16 * next_buffer_++;
    const auto offset = batch_.Load<int64_t>(at), size = batch_.Load<int64_t>(at + 8);
    const auto whole = static_cast<int64_t>(made_.body_.size());
    if (offset < 0 || size < 0 || offset > whole || size > whole - offset) {
      return Damaged("a buffer stands outside");
    }
    bytes = std::string_view(made_.body_)
                .substr(static_cast<size_t>(offset), static_cast<size_t>(size));
    return Unpack(bytes);
  }

  // `count` values of `bits` bits.
  absl::Status TakeFixed(int64_t count, int64_t bits, std::string_view& bytes) {
    SFT_RETURN_IF_ERROR(Take(bytes));
    int64_t needed = 0;
    if (__builtin_mul_overflow(count, bits, &needed) ||
        needed / 8 + (needed % 8 != 0) > static_cast<int64_t>(bytes.size())) {
      return Damaged("a buffer is too short");
    }
    return absl::OkStatus();
  }

  absl::Status Fill(const ArrowField& field, ArrowColumn& column) {
    column.field = &field;
    if (next_node_ == node_count_) return Damaged("it has too few columns");
    const size_t at = nodes_ + 16 * next_node_++;
    column.length = batch_.Load<int64_t>(at);
    const auto nulls = batch_.Load<int64_t>(at + 8);
    if (column.length < 0 || column.length > kMostCount || nulls > kMostCount) {
      return Damaged("a column's length");
    }
    if (field.layout == ArrowField::kNothing) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(Take(column.valid));
    if (nulls == 0) column.valid = {};
    if (!column.valid.empty() &&
        (column.length + 7) / 8 > static_cast<int64_t>(column.valid.size())) {
      return Damaged("a buffer is too short");
    }
    if (field.dictionary >= 0) {
      const auto found = dictionaries_.find(field.dictionary);
      if (found == dictionaries_.end()) return Damaged("a dictionary is missing");
      column.dictionary = &found->second->columns().front();
      return TakeFixed(column.length, 8 * field.index_width, column.data);
    }
    switch (field.layout) {
      case ArrowField::kBits:
        return TakeFixed(column.length, 1, column.data);
      case ArrowField::kFixed:
        return TakeFixed(column.length, int64_t{8} * field.width, column.data);
      case ArrowField::kFixedList: {
        int64_t items = 0;
        SFT_RETURN_IF_ERROR(Children(field, column));
        if (__builtin_mul_overflow(column.length, field.width, &items) ||
            items > column.children.front().length) {
          return Damaged("a list is too short");
        }
        return absl::OkStatus();
      }
      case ArrowField::kStruct:
        SFT_RETURN_IF_ERROR(Children(field, column));
        for (const ArrowColumn& child : column.children) {
          if (child.length < column.length) return Damaged("a member is too short");
        }
        return absl::OkStatus();
      default:
        break;
    }
    // An empty column may leave out its one offset.
    SFT_RETURN_IF_ERROR(TakeFixed(column.length == 0 ? 0 : column.length + 1, field.large ? 64 : 32,
                                  column.offsets));
    return field.layout == ArrowField::kBytes ? Take(column.data) : Children(field, column);
  }

  absl::Status Children(const ArrowField& field, ArrowColumn& column) {
    for (const ArrowField& child : field.children) {
      column.children.emplace_back();
      SFT_RETURN_IF_ERROR(Fill(child, column.children.back()));
    }
    return absl::OkStatus();
  }

  ArrowBatch& made_;
  const FlatTable& batch_;
  const Dictionaries& dictionaries_;
  const int64_t most_bytes_;
  size_t nodes_ = 0, node_count_ = 0, next_node_ = 0;
  size_t buffers_ = 0, buffer_count_ = 0, next_buffer_ = 0;
  int codec_ = -1;
};

absl::StatusOr<std::unique_ptr<ArrowBatch>> ArrowBatch::Make(const std::vector<ArrowField>& fields,
                                                             const FlatTable& batch,
                                                             std::string body,
                                                             const Dictionaries& dictionaries,
                                                             int64_t most_bytes) {
  auto made = std::make_unique<ArrowBatch>();
  made->body_ = std::move(body);
  made->bytes_ = static_cast<int64_t>(made->body_.size());
  SFT_RETURN_IF_ERROR(Maker(*made, batch, dictionaries, most_bytes).Run(fields));
  return made;
}

absl::Status ArrowBatch::AppendRow(int64_t row, RowCounter& counter, std::string& out) const {
  RowWriter writer(out, counter);
  writer.Members(columns_, row, /*keep_nulls=*/false);
  return writer.Result();
}

}  // namespace sft::columnar
