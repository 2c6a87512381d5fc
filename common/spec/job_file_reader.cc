#include "common/spec/job_file_reader.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "common/spec/toml_reader.h"

namespace sft::spec {
namespace {

// The first line that is neither blank nor a comment, without the space before it.
std::string_view FirstLine(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos || line[begin] == '#') continue;
    return line.substr(begin);
  }
  return "";
}

// True for what a value of TOML begins with: "a=b: 1" is a key of YAML.
bool BeginsTomlValue(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  if (text.empty()) return false;
  for (const std::string_view word : {"true", "false", "inf", "nan"}) {
    if (text.starts_with(word)) return true;
  }
  return std::string_view("\"'+-[{0123456789").find(text[0]) != text.npos;
}

// The sign after the name that begins a line: '=' of TOML, ':' of YAML, or 0.
char SignAfterName(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (i == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == '=' && BeginsTomlValue(line.substr(i + 1))) {
      return c;
    } else if (c == ':' && (i + 1 == line.size() || std::isspace(line[i + 1]) != 0)) {
      return c;
    }
  }
  return 0;
}

// True for "[table]" and "[[table]]". A list of YAML or JSON on one line has a comma, or begins
// with something else than a letter.
bool IsHeader(std::string_view line) {
  line = line.substr(0, line.find('#'));
  const size_t name = line.find_first_not_of("[ \t");
  return line.starts_with('[') && line.find(']') != line.npos && name != line.npos &&
         (std::isalpha(static_cast<unsigned char>(line[name])) != 0 || line[name] == '_') &&
         line.find_first_of("{,:") == line.npos;
}

bool EndsWith(std::string_view name, std::string_view ending) {
  if (name.size() < ending.size()) return false;
  name.remove_prefix(name.size() - ending.size());
  return std::equal(name.begin(), name.end(), ending.begin(),
                    [](unsigned char a, char b) { return std::tolower(a) == b; });
}

}  // namespace

std::string_view WithoutFormEnding(std::string_view file_name) {
  for (const std::string_view ending : {".toml", ".yaml", ".yml", ".json"}) {
    if (EndsWith(file_name, ending)) return file_name.substr(0, file_name.size() - ending.size());
  }
  return file_name;
}

FileForm FormOf(std::string_view text, std::string_view file_name) {
  if (EndsWith(file_name, ".toml")) return FileForm::kToml;
  const std::string_view line = FirstLine(text);
  const char sign = SignAfterName(line);
  // What no line of TOML begins with.
  const bool other = !line.empty() && std::string_view("{[/%-?").find(line[0]) != line.npos;
  if (IsHeader(line) || (sign == '=' && !other)) return FileForm::kToml;
  if (EndsWith(file_name, ".yaml") || EndsWith(file_name, ".yml")) return FileForm::kYaml;
  if (EndsWith(file_name, ".json")) return FileForm::kJson;
  if (line.starts_with('{') || line.starts_with("//") || line.starts_with("/*")) {
    return FileForm::kJson;
  }
  const bool yaml = sign == ':' || line.starts_with("---") || line.starts_with('%');
  return yaml ? FileForm::kYaml : FileForm::kToml;
}

std::variant<std::vector<RawEntry>, ReadError> ReadJobFile(std::string_view text,
                                                           std::string_view file_name) {
  switch (FormOf(text, file_name)) {
    case FileForm::kYaml:
      return ReadYaml(text);
    case FileForm::kJson:
      return ReadJson(text);
    case FileForm::kToml:
      break;
  }
  return ReadToml(text);
}

}  // namespace sft::spec
