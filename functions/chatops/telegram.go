package chatops

import (
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strconv"
)

// telegram takes messages and buttons; the answer to the request is the answer to the person.
func (d *desk) telegram(w http.ResponseWriter, r *http.Request, body []byte) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Telegram-Bot-Api-Secret-Token")), []byte(d.Telegram.Secret)) != 1 {
		refuse(w, errSignature)
		return
	}
	type from struct {
		ID int64 `json:"id"`
	}
	var in struct {
		Update  int64 `json:"update_id"`
		Message *struct {
			Date int64  `json:"date"`
			Text string `json:"text"`
			From from   `json:"from"`
			Chat from   `json:"chat"`
		} `json:"message"`
		Query *struct {
			ID   string `json:"id"`
			From from   `json:"from"`
			Data string `json:"data"`
		} `json:"callback_query"`
	}
	if json.Unmarshal(body, &in) != nil || in.Update == 0 {
		refuse(w, errBroken)
		return
	}
	id := strconv.FormatInt(in.Update, 10)
	if err := d.first(r.Context(), "telegram", id); err != nil {
		w.WriteHeader(http.StatusOK) // Telegram repeats what it thinks lost, for ever
		return
	}
	switch {
	case in.Query != nil:
		text := d.click(r.Context(), request{"telegram", strconv.FormatInt(in.Query.From.ID, 10), id}, in.Query.Data)
		answer(w, map[string]any{"method": "answerCallbackQuery", "callback_query_id": in.Query.ID, "text": cut(text, 190), "show_alert": true})
	case in.Message != nil:
		if err := d.fresh(strconv.FormatInt(in.Message.Date, 10)); err != nil {
			w.WriteHeader(http.StatusOK) // said while nobody was here
			return
		}
		text := d.command(r.Context(), request{"telegram", strconv.FormatInt(in.Message.From.ID, 10), id}, in.Message.Text)
		answer(w, map[string]any{"method": "sendMessage", "chat_id": in.Message.Chat.ID, "text": cut(text, 4000)})
	default:
		w.WriteHeader(http.StatusOK)
	}
}

func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}
