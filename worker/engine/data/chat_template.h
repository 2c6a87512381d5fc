#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sft::engine {

// Variables that a template can read besides the conversation.
struct TemplateVariables {
  std::string bos_token;
  std::string eos_token;
  std::string unk_token;
  std::string pad_token;
  // The day that strftime_now() formats, as "YYYY-MM-DD"; empty: each rendering's own, in UTC.
  std::string date;
  std::string arguments = {};  // a JSON object of further variables, or empty
};

// One conversation to render; the texts are borrowed for the call.
struct RenderRequest {
  std::string_view messages_json;    // a JSON array of message objects, not empty
  std::string_view tools_json = {};  // a JSON array, or empty: none
  // A JSON object of further variables, which go before TemplateVariables::arguments; or empty.
  std::string_view variables_json = {};
  bool add_generation_prompt = false;
};

// Bytes [begin, end) of a rendered text.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

// Output of a template.
struct RenderedText {
  std::string text;
  // Spans that the template itself marks with {% generation %}; empty for most templates.
  std::vector<TextSpan> generation;
};

// A Jinja chat template, rendered as transformers' apply_chat_template renders it: trim_blocks,
// lstrip_blocks, Python's spelling of values, tojson without HTML escapes, raise_exception,
// strftime_now and {% generation %}. Runs with a step limit, so a template that loops is an error.
// Immutable; Render may be called from any thread at the same time.
class ChatTemplate {
 public:
  // `origin` names the template in error messages. Throws UserError on a syntax error.
  static ChatTemplate Compile(std::string_view source, std::string_view origin,
                              const TemplateVariables& variables);

  // Throws UserError with the template's own words when it refuses the conversation.
  RenderedText Render(const RenderRequest& request) const;

  // The template's text.
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;  // shared: copies of a template are one compiled template
};

}  // namespace sft::engine
