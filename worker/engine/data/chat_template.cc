#include "worker/engine/data/chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/ffi.h"

namespace sft::engine {

struct ChatTemplate::Impl {
  struct Close {
    void operator()(SftTemplate* chat_template) const { sft_template_close(chat_template); }
  };
  std::unique_ptr<SftTemplate, Close> handle;
  std::string source;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

ChatTemplate ChatTemplate::Compile(std::string_view source, std::string_view origin,
                                   const TemplateVariables& variables) {
  nlohmann::ordered_json given = {{"bos_token", variables.bos_token},
                                  {"eos_token", variables.eos_token},
                                  {"unk_token", variables.unk_token},
                                  {"pad_token", variables.pad_token},
                                  {"date", variables.date}};
  if (!variables.arguments.empty()) given["arguments"] = ParseOrderedJson(variables.arguments);
  const std::string json = DumpJson(given);
  SftTemplate* handle = nullptr;
  const FfiResult result(
      sft_template_compile(source.data(), source.size(), json.data(), json.size(), &handle));
  if (!result.ok()) {
    throw UserError(fmt::format("{}: the chat template cannot be used: {}", origin, result.text()));
  }
  auto impl = std::make_shared<Impl>();
  impl->handle.reset(handle);
  impl->source = source;
  return ChatTemplate(std::move(impl));
}

RenderedText ChatTemplate::Render(const RenderRequest& request) const {
  const FfiResult result(sft_template_render(
      impl_->handle.get(), request.messages_json.data(), request.messages_json.size(),
      request.tools_json.data(), request.tools_json.size(), request.variables_json.data(),
      request.variables_json.size(), request.add_generation_prompt ? 1 : 0));
  if (!result.ok()) {
    throw UserError(fmt::format("the chat template refuses the conversation: {}", result.text()));
  }
  RenderedText rendered{.text = std::string(result.text()), .generation = {}};
  for (size_t i = 0; i < result.get().spans_size; ++i) {
    rendered.generation.push_back({result.get().starts[i], result.get().ends[i]});
  }
  return rendered;
}

const std::string& ChatTemplate::source() const { return impl_->source; }

}  // namespace sft::engine
