#include "common/columnar/json_text.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "common/base/utf8.h"

namespace sft::columnar {
namespace {

constexpr int64_t kMostDecimalBytes = 16, kMostScale = 76;
constexpr int64_t kSecondsADay = 86400;
constexpr int64_t kMostDays = 10'000'000;  // years that a calendar knows

int64_t FloorDiv(int64_t value, int64_t by) {
  return value / by - (value % by != 0 && (value < 0) != (by < 0) ? 1 : 0);
}

std::string DateText(int64_t days) {
  const std::chrono::year_month_day date{
      std::chrono::sys_days{std::chrono::days{static_cast<int>(days)}}};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

// Units of which `scale` make a second, from midnight.
std::string TimeText(int64_t units, int64_t scale) {
  const int64_t seconds = units / scale, rest = units % scale;
  std::string text =
      fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  if (rest == 0) return text;
  int digits = 0;
  for (int64_t at = scale; at > 1; at /= 10) ++digits;
  return text + fmt::format(".{:0{}}", rest, digits);
}

std::string InstantText(int64_t units, int64_t scale, bool utc) {
  const int64_t seconds = FloorDiv(units, scale);
  const int64_t days = FloorDiv(seconds, kSecondsADay);
  return DateText(days) + "T" + TimeText(units - days * kSecondsADay * scale, scale) +
         (utc ? "Z" : "");
}

void AppendDigits(std::string digits, int64_t scale, std::string& out) {
  const bool negative = digits.starts_with('-');
  if (negative) digits.erase(0, 1);
  if (scale > 0) {
    const auto places = static_cast<size_t>(scale);
    if (digits.size() <= places) digits.insert(0, places + 1 - digits.size(), '0');
    digits.insert(digits.size() - places, 1, '.');
  }
  if (negative) out += '-';
  out += digits;
}

// Decimals in bytes are big-endian two's complement.
bool AppendDecimal(std::string_view bytes, int64_t scale, std::string& out) {
  if (bytes.empty() || bytes.size() > kMostDecimalBytes) return false;
  unsigned __int128 bits = (bytes[0] & 0x80) != 0 ? ~static_cast<unsigned __int128>(0) : 0;
  for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
  const auto number = static_cast<__int128>(bits);
  AppendDigits(fmt::format("{}", number), scale, out);
  return true;
}

void AppendReal(std::string text, std::string& out) {
  const bool whole = text.find_first_of(".e") == text.npos;
  out += text;
  if (whole) out += ".0";  // a float stays one
}

std::string UuidText(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

std::string Int96Text(std::string_view bytes) {
  constexpr int64_t kJulianDayOf1970 = 2440588;
  int64_t nanos = 0;
  int32_t day = 0;
  if (bytes.size() != 12) return "";
  std::memcpy(&nanos, bytes.data(), 8);
  std::memcpy(&day, bytes.data() + 8, 4);
  if (nanos < 0 || nanos / 1'000'000'000 >= kSecondsADay) return "";
  if (std::abs(day - kJulianDayOf1970) > kMostDays) return "";
  return DateText(day - kJulianDayOf1970) + "T" + TimeText(nanos, 1'000'000'000);
}

bool IsReal(Meaning meaning) {
  return meaning == Meaning::kFloat || meaning == Meaning::kDouble || meaning == Meaning::kHalf;
}

void AppendMoment(const ValueForm& form, int64_t number, std::string& out) {
  const int64_t scale = form.meaning == Meaning::kDate ? 1 : form.scale;
  const int64_t day = form.meaning == Meaning::kDate ? 1 : kSecondsADay * scale;
  const bool in_day = number >= 0 && number < day;
  if (form.meaning == Meaning::kTime ? !in_day
                                     : number / day > kMostDays || number / day < -kMostDays) {
    out += fmt::format("{}", number);
  } else if (form.meaning == Meaning::kDate) {
    out += '"' + DateText(number) + '"';
  } else if (form.meaning == Meaning::kTime) {
    out += '"' + TimeText(number, scale) + '"';
  } else {
    out += '"' + InstantText(number, scale, form.utc) + '"';
  }
}

}  // namespace

bool HasNoJson(const ValueForm& form, const Value& value) {
  return form.meaning == Meaning::kNull || (IsReal(form.meaning) && !std::isfinite(value.real));
}

void AppendQuoted(std::string_view text, std::string& out) {
  out += '"';
  size_t from = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, from, i - from);
    from = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    }
  }
  out.append(text, from, text.size() - from);
  out += '"';
}

bool LongerThan(const ValueForm& form, const Value& value, int64_t room) {
  if (static_cast<int64_t>(value.bytes.size()) <= room) return false;
  return form.meaning == Meaning::kText || (form.meaning == Meaning::kBytes && IsUtf8(value.bytes));
}

absl::Status CheckDecimal(std::string_view column, int64_t bytes, int64_t scale) {
  if (bytes > kMostDecimalBytes) {
    return InvalidArgument(
        fmt::format("column {} has decimals of {} bytes, which are not read beyond {}; write it "
                    "with at most 38 digits, or as text",
                    column, bytes, kMostDecimalBytes));
  }
  if (scale >= 0 && scale <= kMostScale) return absl::OkStatus();
  return InvalidArgument(
      fmt::format("column {} has decimals of scale {}, which is not read; scales are 0 to {}",
                  column, scale, kMostScale));
}

bool AppendValue(const ValueForm& form, const Value& value, std::string& out) {
  if (HasNoJson(form, value)) {
    out += "null";
    return true;
  }
  switch (form.meaning) {
    case Meaning::kBool:
      out += value.number != 0 ? "true" : "false";
      break;
    case Meaning::kInt:
      fmt::format_to(std::back_inserter(out), "{}", value.number);
      break;
    case Meaning::kUnsigned:
      fmt::format_to(std::back_inserter(out), "{}", static_cast<uint64_t>(value.number));
      break;
    case Meaning::kFloat:
    case Meaning::kHalf:
      AppendReal(fmt::format("{}", static_cast<float>(value.real)), out);
      break;
    case Meaning::kDouble:
      AppendReal(fmt::format("{}", value.real), out);
      break;
    case Meaning::kDecimal:
      if (value.bytes.empty()) {
        AppendDigits(fmt::format("{}", value.number), form.scale, out);
        break;
      }
      return AppendDecimal(value.bytes, form.scale, out);
    case Meaning::kDate:
    case Meaning::kTime:
    case Meaning::kInstant:
      AppendMoment(form, value.number, out);
      break;
    case Meaning::kUuid:
      out += '"' + UuidText(value.bytes) + '"';
      break;
    case Meaning::kInt96:
      out += '"' + Int96Text(value.bytes) + '"';
      break;
    case Meaning::kText:
      if (!IsUtf8(value.bytes)) return false;
      AppendQuoted(value.bytes, out);
      break;
    case Meaning::kBytes:
      if (IsUtf8(value.bytes)) {
        AppendQuoted(value.bytes, out);
      } else {
        out += fmt::format("\"{} bytes that are no text\"", value.bytes.size());
      }
      break;
    case Meaning::kNull:
      out += "null";
  }
  return true;
}

double HalfToDouble(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

bool KeepsNulls(std::string_view member) {
  return member == "enum" || member == "const" || member == "default";
}

}  // namespace sft::columnar
