#include "common/columnar/arrow_batch.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "common/base/bytes.h"
#include "common/base/utf8.h"
#include "common/columnar/page_codec.h"

namespace sft::columnar {
namespace {

constexpr int kMostArrowDepth = 64;

// Members of Arrow's Type.
enum ArrowType {
  kArrowNull = 1,
  kArrowInt = 2,
  kArrowFloat = 3,
  kArrowBinary = 4,
  kArrowUtf8 = 5,
  kArrowBool = 6,
  kArrowDecimal = 7,
  kArrowDate = 8,
  kArrowTime = 9,
  kArrowTimestamp = 10,
  kArrowList = 12,
  kArrowStruct = 13,
  kArrowFixedBinary = 15,
  kArrowFixedList = 16,
  kArrowMap = 17,
  kArrowDuration = 18,
  kArrowLargeBinary = 19,
  kArrowLargeUtf8 = 20,
  kArrowLargeList = 21
};

int64_t TicksASecond(int16_t unit) {
  constexpr int64_t kTicks[] = {1, 1'000, 1'000'000, 1'000'000'000};
  return unit >= 0 && unit < 4 ? kTicks[unit] : 1;
}

void SetInt(const FlatTable& type, ArrowField& field) {
  field.layout = ArrowField::kFixed;
  field.width = type.Get<int32_t>(0, 0) / 8;
  field.is_signed = type.Get<uint8_t>(1, 0) != 0;
  field.form.meaning = field.is_signed ? Meaning::kInt : Meaning::kUnsigned;
}

void SetFloat(const FlatTable& type, ArrowField& field) {
  const int16_t precision = type.Get<int16_t>(0, 0);
  field.layout = ArrowField::kFixed;
  field.width = precision == 0 ? 2 : precision == 1 ? 4 : 8;
  field.form.meaning = precision == 0   ? Meaning::kHalf
                       : precision == 1 ? Meaning::kFloat
                                        : Meaning::kDouble;
}

// False: a type that is not read.
bool SetType(int kind, const FlatTable& type, ArrowField& field) {
  field.large = kind == kArrowLargeBinary || kind == kArrowLargeUtf8 || kind == kArrowLargeList;
  field.layout = ArrowField::kFixed;
  switch (kind) {
    case kArrowNull:
      field.layout = ArrowField::kNothing;
      field.form.meaning = Meaning::kNull;
      return true;
    case kArrowInt:
      SetInt(type, field);
      return field.width == 1 || field.width == 2 || field.width == 4 || field.width == 8;
    case kArrowFloat:
      SetFloat(type, field);
      return true;
    case kArrowBool:
      field.layout = ArrowField::kBits;
      field.form.meaning = Meaning::kBool;
      return true;
    case kArrowBinary:
    case kArrowLargeBinary:
    case kArrowUtf8:
    case kArrowLargeUtf8:
      field.layout = ArrowField::kBytes;
      field.form.meaning =
          kind == kArrowUtf8 || kind == kArrowLargeUtf8 ? Meaning::kText : Meaning::kBytes;
      return true;
    case kArrowDecimal:
      field.width = type.Get<int32_t>(2, 128) / 8;
      field.form = {Meaning::kDecimal, type.Get<int32_t>(1, 0)};
      return field.width >= 4 && field.width <= 16;
    case kArrowDate:
      field.width = type.Get<int16_t>(0, 1) == 0 ? 4 : 8;
      field.form =
          field.width == 4 ? ValueForm{Meaning::kDate} : ValueForm{Meaning::kInstant, 1'000};
      return true;
    case kArrowTime:
      field.width = type.Get<int32_t>(1, 32) / 8;
      field.form = {Meaning::kTime, TicksASecond(type.Get<int16_t>(0, 1))};
      return field.width == 4 || field.width == 8;
    case kArrowTimestamp:
      field.width = 8;
      field.form = {Meaning::kInstant, TicksASecond(type.Get<int16_t>(0, 0)),
                    !type.Text(1).empty()};
      return true;
    case kArrowDuration:
      field.width = 8;
      field.form = {Meaning::kInt};
      return true;
    case kArrowFixedBinary:
      field.width = type.Get<int32_t>(0, 0);
      return field.width > 0;
    case kArrowFixedList:
      field.layout = ArrowField::kFixedList;
      field.width = type.Get<int32_t>(0, 0);
      return field.width >= 0 && field.children.size() == 1;
    case kArrowList:
    case kArrowLargeList:
      field.layout = ArrowField::kList;
      return field.children.size() == 1;
    case kArrowMap:
      field.layout = ArrowField::kMap;
      return field.children.size() == 1 && field.children[0].layout == ArrowField::kStruct &&
             field.children[0].children.size() == 2;
    case kArrowStruct:
      field.layout = ArrowField::kStruct;
      return true;
    default:
      return false;
  }
}

// What the field's notes say of its type.
bool IsUuid(const FlatTable& field) {
  size_t count = 0;
  const size_t at = field.Vector(6, 4, count);
  for (size_t i = 0; i < count; ++i) {
    const FlatTable note = field.At(at + 4 * i);
    if (note.Text(0) == "ARROW:extension:name") return note.Text(1) == "arrow.uuid";
  }
  return false;
}

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
  RowWriter(std::string& out, int64_t max_bytes) : out_(out), max_bytes_(max_bytes) {}

  void Members(const std::vector<ArrowColumn>& columns, int64_t index, bool keep_nulls) {
    out_ += '{';
    bool first = true;
    for (const ArrowColumn& column : columns) {
      if (!keep_nulls && IsNull(column, index)) continue;
      if (!first) out_ += ',';
      first = false;
      AppendQuoted(column.field->name, out_);
      out_ += ':';
      Put(column, index, keep_nulls || KeepsNulls(column.field->name));
    }
    out_ += '}';
  }

  bool ok() const { return ok_; }

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
    return IntAt(column.data, column.field->index_width, /*is_signed=*/true, index);
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
        ok_ = AppendValue(column.field->form, value, out_) && ok_;
        return;
      }
      default:
        ok_ = AppendValue(column.field->form, ValueAt(column, index), out_) && ok_;
    }
  }

  bool TooLong() { return static_cast<int64_t>(out_.size()) > max_bytes_; }

  void Items(const ArrowColumn& column, int64_t index, bool keep_nulls) {
    const ArrowColumn& items = column.children.front();
    const auto [begin, end] = Range(column, index, items.length);
    out_ += '[';
    for (int64_t i = begin; i < end && !TooLong(); ++i) {
      if (i > begin) out_ += ',';
      Put(items, i, keep_nulls);
    }
    out_ += ']';
  }

  void Entries(const ArrowColumn& column, int64_t index) {
    const ArrowColumn& entries = column.children.front();
    const auto [begin, end] = Range(column, index, entries.length);
    out_ += '{';
    for (int64_t i = begin; i < end && !TooLong(); ++i) {
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
  const int64_t max_bytes_;
  std::string scratch_;
  bool ok_ = true;
};

}  // namespace

absl::StatusOr<ArrowField> ReadArrowField(const FlatTable& table, int depth, int& most_fields) {
  ArrowField field;
  field.name = table.Text(0);
  if (depth > kMostArrowDepth || --most_fields < 0 || !IsUtf8(field.name)) {
    return InvalidArgument("its schema is damaged, or too large");
  }
  size_t count = 0;
  const size_t at = table.Vector(5, 4, count);
  for (size_t i = 0; i < count; ++i) {
    SFT_ASSIGN_OR_RETURN(ArrowField child,
                         ReadArrowField(table.At(at + 4 * i), depth + 1, most_fields));
    field.children.push_back(std::move(child));
  }
  const int kind = table.Get<uint8_t>(2, 0);
  if (!SetType(kind, table.Table(3), field)) {
    return InvalidArgument(fmt::format(
        "column {} is of Arrow's type {}, which is not read; write the table as Parquet",
        field.name, kind));
  }
  if (kind == kArrowFixedBinary && field.width == 16 && IsUuid(table)) {
    field.form.meaning = Meaning::kUuid;
  }
  const FlatTable dictionary = table.Table(4);
  if (!dictionary.there()) return field;
  field.dictionary = dictionary.Get<int64_t>(0, 0);
  const FlatTable index = dictionary.Table(1);
  field.index_width = index.there() ? index.Get<int32_t>(0, 32) / 8 : 4;
  if (field.index_width != 1 && field.index_width != 2 && field.index_width != 4 &&
      field.index_width != 8) {
    return InvalidArgument("its schema is damaged");
  }
  return field;
}

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
    if (made_.rows_ < 0) return Damaged("its count of rows");
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
        (needed + 7) / 8 > static_cast<int64_t>(bytes.size())) {
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
    if (column.length < 0) return Damaged("a column's length");
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

bool ArrowBatch::AppendRow(int64_t row, int64_t max_bytes, std::string& out) const {
  RowWriter writer(out, max_bytes);
  writer.Members(columns_, row, /*keep_nulls=*/false);
  return writer.ok();
}

}  // namespace sft::columnar
