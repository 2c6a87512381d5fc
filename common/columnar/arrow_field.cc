#include "common/columnar/arrow_field.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/utf8.h"

namespace sft::columnar {
namespace {

constexpr int kMostArrowDepth = 64;
constexpr size_t kMostNotes = 1'000;

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
             field.children[0].dictionary < 0 && field.children[0].children.size() == 2;
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
  for (size_t i = 0; i < std::min(count, kMostNotes); ++i) {
    const FlatTable note = field.At(at + 4 * i);
    if (note.Text(0) == "ARROW:extension:name") return note.Text(1) == "arrow.uuid";
  }
  return false;
}

}  // namespace

absl::StatusOr<ArrowField> ReadArrowField(const FlatTable& table, int depth,
                                          ArrowSchemaRoom& room) {
  ArrowField field;
  const std::string_view name = table.Text(0);
  room.name_bytes -= static_cast<int64_t>(name.size());
  if (name.size() > kMostNameBytes || room.name_bytes < 0) return NamesTooLong();
  if (depth > kMostArrowDepth || --room.fields < 0 || !IsUtf8(name)) {
    return InvalidArgument("its schema is damaged, or too large");
  }
  field.name = name;
  size_t count = 0;
  const size_t at = table.Vector(5, 4, count);
  for (size_t i = 0; i < count; ++i) {
    SFT_ASSIGN_OR_RETURN(ArrowField child, ReadArrowField(table.At(at + 4 * i), depth + 1, room));
    field.children.push_back(std::move(child));
  }
  const int kind = table.Get<uint8_t>(2, 0);
  const bool is_read = SetType(kind, table.Table(3), field);
  if (kind == kArrowDecimal) {
    SFT_RETURN_IF_ERROR(CheckDecimal(field.name, field.width, field.form.scale));
  }
  if (!is_read) {
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
  field.index_signed = !index.there() || index.Get<uint8_t>(1, 0) != 0;
  if (field.index_width != 1 && field.index_width != 2 && field.index_width != 4 &&
      field.index_width != 8) {
    return InvalidArgument("its schema is damaged");
  }
  return field;
}

}  // namespace sft::columnar
