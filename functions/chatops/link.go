package chatops

import (
	"html/template"
	"net/http"
	"net/url"

	"lowtide/shared/click"
	"lowtide/shared/order"
)

// page shows a decision; the form takes it. Previews of links fetch them, so a GET changes nothing.
var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="{{.Lang}}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="robots" content="noindex"><title>lowtide</title></head>
<body><main><h1>lowtide</h1><p>{{.Text}}</p>{{if .Token}}<form method="post" action="decide"><input type="hidden" name="t" value="{{.Token}}"><button>{{.Act}}</button></form>{{end}}</main></body></html>
`))

type view struct{ Lang, Text, Token, Act string }

func (d *desk) render(w http.ResponseWriter, code int, v view) {
	v.Lang = d.lang("en", "zh-CN")
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Referrer-Policy", "no-referrer") // the address is the key
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'")
	w.WriteHeader(code)
	_ = page.Execute(w, v)
}

// show says what a link would do.
func (d *desk) show(w http.ResponseWriter, r *http.Request, _ []byte) {
	token := r.URL.Query().Get("t")
	o, err := d.pressed(token)
	if err != nil {
		d.render(w, http.StatusForbidden, view{Text: err.Error()})
		return
	}
	f, err := d.fleet(r.Context())
	if err != nil {
		d.render(w, http.StatusServiceUnavailable, view{Text: errAway.Error()})
		return
	}
	name, p := d.person(request{via: "link", user: "link"})
	if p == nil || !order.Role(p.Role).May(o.verb) {
		d.render(w, http.StatusForbidden, view{Text: d.lang("links decide nothing here", "此处不允许通过链接作决定")})
		return
	}
	res := d.decide(f, name, p, o)
	if !res.done {
		d.render(w, http.StatusOK, view{Text: res.text})
		return
	}
	pl := f.Plans[o.about]
	act := map[string]string{click.Approve: d.lang("Approve", "批准"), click.Deny: d.lang("Deny", "拒绝")}[o.verb]
	d.render(w, http.StatusOK, view{
		Text: pl.Workload + ": " + pl.Offers[0].String() + ", " + pl.Highest().String() + "/h. " + pl.Score.Reason, Token: token, Act: act,
	})
}

// press takes the decision of a link, once.
func (d *desk) press(w http.ResponseWriter, r *http.Request, body []byte) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		refuse(w, errBroken)
		return
	}
	token := form.Get("t")
	o, err := d.pressed(token)
	if err != nil {
		d.render(w, http.StatusForbidden, view{Text: err.Error()})
		return
	}
	if err := d.first(r.Context(), "link", token); err != nil {
		d.render(w, http.StatusConflict, view{Text: err.Error()})
		return
	}
	d.render(w, http.StatusOK, view{Text: d.take(r.Context(), request{"link", "link", token}, o)})
}
